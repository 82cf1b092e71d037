// The gated output norm of KDA (spec/model.md 3.7), a warp a head: fp32, one rounding. Floor of a row and head of 128:
// 768 bytes, 0.17 ns.
#include "device/kernel.h"
#include "ops/kda_conv/kda_conv_args.h"
#include "ops/kda_conv/lane_values.h"

namespace {

using namespace tandem;
using namespace tandem::device;

constexpr int32_t dim = ops::kda_dim, lane_values = ops::kda_lane_values;

TANDEM_KERNEL(kda_output_rows, ops::KdaOutputArgs, 256) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t head = static_cast<int32_t>(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32);
  const int64_t row = blockIdx.x;
  if (row >= *args.rows || head >= args.heads) return;
  const int64_t channel = head * dim + lane * lane_values, at = row * args.heads * dim + channel;
  float o[lane_values], gate[lane_values], weight[lane_values];
  ops::load_values(args.o + at, o);
  ops::load_values(args.gate + row * args.gate_stride + channel, gate);
  ops::load_values(args.weight + lane * lane_values, weight);
  float squares = 0.0f;
  for (int32_t i = 0; i < lane_values; ++i) squares = fma_(o[i], o[i], squares);
  const float factor = 1.0f / sqrt_(sum_over_warp(squares) / static_cast<float>(dim) + args.eps);
  for (int32_t i = 0; i < lane_values; ++i) o[i] = o[i] * factor * weight[i] * sigmoid(gate[i]);
  ops::store_values(args.out + at, o);
}

}  // namespace
