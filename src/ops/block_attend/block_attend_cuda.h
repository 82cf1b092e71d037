// Attention of the DFlash2 drafter's blocks on a GPU; block_attend.h has the formula.
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/block_attend/block_attend_args.h"

namespace tandem::ops {

class CudaBlockAttend {
 public:
  // head_dim: that of the defines (TANDEM_DRAFTER_HEAD_DIM).
  CudaBlockAttend(device::Gpu& gpu, const std::vector<std::string>& defines, int64_t head_dim);

  static int64_t scratch_bytes(const BlockAttendArgs& args, int64_t head_dim, int64_t max_blocks);
  // At most 64 rows a block; head_dim a multiple of 16. The first *args.blocks (device memory) of max_blocks blocks.
  // pieces, piece_sums and piece_outputs are filled in here.
  void run(BlockAttendArgs args, int64_t max_blocks, void* scratch) const;
  // context: keys of the context that a block sees.
  static device::KernelCost cost(const BlockAttendArgs& args, int64_t head_dim, int64_t blocks, int64_t context);

 private:
  device::Gpu& gpu_;
  device::Kernel pieces_, merge_;
  int64_t head_dim_;
};

}  // namespace tandem::ops
