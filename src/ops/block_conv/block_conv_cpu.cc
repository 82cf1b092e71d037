// The two-tap convolution on the CPU, a task a row.
#include <algorithm>

#include "ops/block_conv/block_conv.h"

namespace tandem::ops {
namespace {

void conv_row(const BlockConv& a, int64_t row) {
  const int64_t groups = a.channels / a.group_size;
  const float *delta0 = a.delta + row * a.delta_stride, *delta1 = delta0 + groups;
  const float *base0 = a.base, *base1 = a.base + a.channels;
  const float* in = a.in + row * a.channels;
  const float* before = row % a.block_rows == 0 ? nullptr : in - a.channels;
  float* out = a.out + row * a.channels;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t c = g * a.group_size; c < (g + 1) * a.group_size; ++c) {
      float value = (base0[c] + delta0[g]) * in[c];
      if (before != nullptr) value += (base1[c] + delta1[g]) * before[c];
      out[c] = a.accumulate ? out[c] + value : value;
    }
  }
  const RoundingPoint point = a.accumulate ? RoundingPoint::drafter_residual : RoundingPoint::drafter_conv;
  round_values(a.compute, point, out, a.channels);
}

}  // namespace

void block_conv(device::Threads& threads, const BlockConv& args) {
  threads.run(args.rows, [&args](int64_t row) { conv_row(args, row); });
}

}  // namespace tandem::ops
