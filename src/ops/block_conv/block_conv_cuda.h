// The two-tap convolution on a GPU; block_conv.h has the formula.
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/block_conv/block_conv_args.h"

namespace tandem::ops {

class CudaBlockConv {
 public:
  CudaBlockConv(device::Gpu& gpu, const std::vector<std::string>& defines);
  // The first *args.blocks (device memory) of max_blocks blocks; `channels` and `group_size` are even.
  void run(const BlockConvArgs& args, int64_t max_blocks) const;
  static device::KernelCost cost(const BlockConvArgs& args, int64_t blocks);

 private:
  device::Gpu& gpu_;
  device::Kernel kernel_;
};

}  // namespace tandem::ops
