// Norms of bf16 rows on a GPU; norm.h has the formulas.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/norm/norm_args.h"

namespace tandem::ops {

class CudaNorm {
 public:
  CudaNorm(device::Gpu& gpu, const std::vector<std::string>& defines);
  // At most NormArgs::max_parts parts, each of the first *rows (device memory) of max_rows rows.
  void run(std::span<const NormPart> parts, const int32_t* rows, int64_t max_rows) const;

  // Of a run over `rows` rows.
  static device::KernelCost cost(std::span<const NormPart> parts, int64_t rows);

 private:
  device::Gpu& gpu_;
  device::Kernel kernel_;
};

}  // namespace tandem::ops
