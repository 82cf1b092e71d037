// Norm and rotation of heads on a GPU, into rows or into the rings of context rows (cache/context_ring.h); rope.h has
// the formula. Statistics and rotation in fp32, rounded after the norm and after the rotation (ops/rounding.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/rope/rope_args.h"

namespace tandem::ops {

class CudaRope {
 public:
  CudaRope(device::Gpu& gpu, const std::vector<std::string>& defines);
  // At most RopeArgs::max_parts parts, each of the first *args.rows (device memory) of max_rows rows; args.parts is
  // filled in here. Head size: TANDEM_DRAFTER_HEAD_DIM.
  void run(RopeArgs args, std::span<const RopePart> parts, int64_t max_rows) const;
  static device::KernelCost cost(std::span<const RopePart> parts, int64_t head_dim, int64_t rows);

 private:
  device::Gpu& gpu_;
  device::Kernel kernel_;
};

}  // namespace tandem::ops
