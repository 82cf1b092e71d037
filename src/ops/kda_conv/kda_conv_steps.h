// One head of one row before the KDA recurrence, by a warp whose lanes have TANDEM_KDA_DIM / 32 channels side by side.
// For kernels.
#pragma once

#include "device/kernel.h"
#include "ops/kda_conv/kda_conv_args.h"
#include "ops/kda_conv/lane_values.h"

namespace tandem::ops {

constexpr float kda_conv_norm_eps = 1e-6f;  // kda_norm_eps

// What all rows of a head share.
struct KdaHead {
  int32_t channel;                                  // of the lane, among a row's heads · dim
  float weights[3][kda_max_taps][kda_lane_values];  // of q, k and v; the last one is the current row's
  float bias[kda_lane_values];
  float rate;
};
struct KdaHeadRow {
  float q[kda_lane_values], k[kda_lane_values], v[kda_lane_values], g[kda_lane_values];
  float beta;
};

// Rows of a segment of at most so many rows go into the ring at once: they do not meet the rows that the convolution
// looks back to there. Longer segments' last rows are stored by the next launch.
TANDEM_DEVICE bool kda_ring_at_once(const SegmentView& segment) {
  return segment.rows <= kda_ring_rows - (kda_max_taps - 1);
}

TANDEM_DEVICE void load_head(const KdaConvArgs& args, int32_t head, int32_t lane, KdaHead& to) {
  to.channel = head * kda_dim + lane * kda_lane_values;
#pragma unroll
  for (int32_t part = 0; part < 3; ++part) {
#pragma unroll
    for (int32_t tap = 0; tap < kda_max_taps; ++tap) {
      const int32_t stored = args.kernel - kda_max_taps + tap;
      if (stored >= 0)
        load_values(args.taps + (stored * 3 + part) * args.heads * kda_dim + to.channel, to.weights[part][tap]);
    }
  }
  load_values(args.dt_bias + to.channel, to.bias);
  to.rate = args.rate[head];
}

TANDEM_DEVICE void kda_normalise(float (&x)[kda_lane_values], float factor) {
  float squares = 0.0f;
  for (int32_t i = 0; i < kda_lane_values; ++i) squares = device::fma_(x[i], x[i], squares);
  const float scale = 1.0f / device::sqrt_(device::sum_over_warp(squares) + kda_conv_norm_eps) * factor;
  for (int32_t i = 0; i < kda_lane_values; ++i) x[i] *= scale;
}

// q, k or v (part) of one row after SiLU, rounded to bf16.
TANDEM_DEVICE void kda_convolve(const KdaConvArgs& args, const SegmentView& segment, int32_t row, const KdaHead& head,
                                int32_t part, const float (&weights)[kda_max_taps][kda_lane_values],
                                float (&y)[kda_lane_values]) {
  const int32_t width = args.heads * kda_dim, position = segment.position + row - segment.first_row;
  const device::bf16* ring = args.ring.data + segment.slot * args.ring.stride;
  float sum[kda_lane_values] = {};
#pragma unroll
  for (int32_t tap = 0; tap < kda_max_taps; ++tap) {
    const int32_t back = kda_max_taps - 1 - tap;
    if (back >= args.kernel || position < back) continue;  // before the first row the inputs are zero
    const device::bf16* from = position - back >= segment.position
                                   ? args.raw + (row - back) * args.raw_stride
                                   : ring + static_cast<int64_t>((position - back) % kda_ring_rows) * 3 * width;
    float x[kda_lane_values];
    load_values(from + part * width + head.channel, x);
    for (int32_t i = 0; i < kda_lane_values; ++i) sum[i] = device::fma_(weights[tap][i], x[i], sum[i]);
  }
  for (int32_t i = 0; i < kda_lane_values; ++i) y[i] = device::round_to_bf16(device::silu(sum[i]));
}

TANDEM_DEVICE void kda_head_row(const KdaConvArgs& args, const SegmentView& segment, int32_t row, int32_t number,
                                const KdaHead& head, KdaHeadRow& to) {
  kda_convolve(args, segment, row, head, 0, head.weights[0], to.q);
  kda_convolve(args, segment, row, head, 1, head.weights[1], to.k);
  kda_convolve(args, segment, row, head, 2, head.weights[2], to.v);
  kda_normalise(to.q, 1.0f / device::sqrt_(static_cast<float>(kda_dim)));
  kda_normalise(to.k, 1.0f);
  load_values(args.f + row * args.f_stride + head.channel, to.g);
  for (int32_t i = 0; i < kda_lane_values; ++i)
    to.g[i] = args.gate_lower_bound * device::sigmoid(head.rate * (to.g[i] + head.bias[i]));
  to.beta = device::sigmoid(device::to_float(args.b[row * args.b_stride + number]));
}

// The row's raw values of this head into the slot's ring.
TANDEM_DEVICE void kda_store_ring(const KdaConvArgs& args, const SegmentView& segment, int32_t row, int32_t channel) {
  const int32_t width = args.heads * kda_dim, position = segment.position + row - segment.first_row;
  device::bf16* to = args.ring.data + segment.slot * args.ring.stride +
                     static_cast<int64_t>(position % kda_ring_rows) * 3 * width + channel;
  for (int32_t part = 0; part < 3; ++part) {
    float raw[kda_lane_values];
    load_values(args.raw + row * args.raw_stride + part * width + channel, raw);
    store_values(to + part * width, raw);
  }
}

}  // namespace tandem::ops
