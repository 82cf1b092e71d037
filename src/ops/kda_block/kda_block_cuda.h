// The KDA recurrence on a GPU. Two launches serve prompt, decode and draft rows alike: one prepares every block of 16
// tokens of every segment at once (G, the pair products a and b, the scaled keys and queries), one then walks each
// segment's blocks with S₀ in registers. A row's arithmetic is the same in both whoever runs beside it.
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/kda_block/kda_block_args.h"

namespace tandem::ops {

class CudaKdaBlock {
 public:
  // dim: that of the defines, a multiple of 32 up to 128.
  CudaKdaBlock(device::Gpu& gpu, const std::vector<std::string>& defines, int64_t dim);
  // Memory between the two launches, for steps of at most so many rows and segments.
  static int64_t scratch_bytes(int64_t heads, int64_t dim, int64_t max_rows, int64_t max_segments);
  // Writes o and the log rows and advances S₀ over full blocks of certain rows; afterwards the slots' states are those
  // of block kda_block_after() (kda_block.h).
  void run(const KdaBlockArgs& args, int64_t max_rows, int64_t max_segments) const;
  // CudaKdaConv::run() and run() with the same bits: conv.step, heads, k, v and g are those of `block`; conv.q,
  // conv.beta, block.q and block.beta are not used. A launch less, and q, k and g stay on the chip.
  void run_with_conv(const KdaConvArgs& conv, const KdaBlockArgs& block, int64_t max_rows, int64_t max_segments) const;
  // Of run() and of run_with_conv(), for `rows` rows in `segments` segments.
  device::KernelCost cost(int64_t heads, int64_t rows, int64_t segments) const;
  device::KernelCost cost_with_conv(int64_t heads, int64_t kernel, int64_t rows, int64_t segments) const;

 private:
  void walk(const KdaBlockArgs& args, int64_t max_segments) const;

  device::Gpu& gpu_;
  device::Kernel prepare_, conv_prepare_, ring_, walk_;
  int64_t dim_;
};

}  // namespace tandem::ops
