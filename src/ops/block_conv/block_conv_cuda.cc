// The launch of the drafter's convolution.
#include "ops/block_conv/block_conv_cuda.h"

namespace tandem::ops {

CudaBlockConv::CudaBlockConv(device::Gpu& gpu, const std::vector<std::string>& defines)
    : gpu_(gpu), kernel_(gpu.load({"ops/block_conv/block_conv.cu", "convolve_block", defines})) {}

void CudaBlockConv::run(const BlockConvArgs& args, int64_t max_blocks) const {
  if (max_blocks == 0) return;
  device::Launch launch{kernel_};
  launch.threads = 256;
  const auto channels_of_block = static_cast<int32_t>(2 * launch.threads);
  launch.grid[0] = static_cast<uint32_t>(max_blocks * args.block_rows);
  launch.grid[1] = static_cast<uint32_t>((args.channels + channels_of_block - 1) / channels_of_block);
  gpu_.launch(launch, args);
}

device::KernelCost CudaBlockConv::cost(const BlockConvArgs& args, int64_t blocks) {
  const int64_t values = blocks * args.block_rows * args.channels;
  const int64_t deltas = blocks * args.block_rows * 2 * args.channels / args.group_size;
  return {2 * (values * (args.accumulate != 0 ? 3 : 2) + deltas) + 8 * args.channels, 6 * values};
}

}  // namespace tandem::ops
