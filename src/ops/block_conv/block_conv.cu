// The two-tap convolution over the rows of the drafter's blocks (spec/speculation.md 1.5): two channels a thread, fp32
// with one rounding. Floor: in read once (the row before comes from the cache), out read and written.
#include "device/kernel.h"
#include "ops/block_conv/block_conv_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;

TANDEM_DEVICE uint32_t pair_at(const bf16* at) { return *reinterpret_cast<const uint32_t*>(at); }

TANDEM_KERNEL(convolve_block, ops::BlockConvArgs, 256) {
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t channel = static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x) * 2;
  if (row >= *args.blocks * args.block_rows || channel >= args.channels) return;
  const int32_t groups = args.channels / args.group_size, group = channel / args.group_size;
  const bf16* delta = args.delta + row * args.delta_stride;
  const float* base = args.base + channel;
  const int64_t at = static_cast<int64_t>(row) * args.channels + channel;
  const float now = to_float(delta[group]), before = to_float(delta[groups + group]);
  const uint32_t in = pair_at(args.in + at);
  float first = (base[0] + now) * first_of(in), second = (base[1] + now) * second_of(in);
  if (row % args.block_rows != 0) {
    const uint32_t previous = pair_at(args.in + at - args.channels);
    first = fma_(base[args.channels] + before, first_of(previous), first);
    second = fma_(base[args.channels + 1] + before, second_of(previous), second);
  }
  if (args.accumulate != 0) {
    const uint32_t residual = pair_at(args.out + at);
    first += first_of(residual);
    second += second_of(residual);
  }
  *reinterpret_cast<uint32_t*>(args.out + at) = pack_bf16(first, second);
}

}  // namespace
