// What stands before the KDA recurrence: short convolution with SiLU, q/k normalisation, decay gate and beta
// (spec/model.md 3.2-3.4).
#pragma once

#include <cstdint>

#include "device/threads.h"
#include "ops/rounding.h"

namespace tandem::ops {

constexpr float kda_norm_eps = 1e-6f;

// One segment: rows at absolute positions position … position + rows − 1.
struct KdaConv {
  int64_t heads = 0, dim = 0, kernel = 0;
  int64_t position = 0, rows = 0;
  const float* raw = nullptr;  // [rows, 3·heads·dim] projections q|k|v before the convolution
  float* ring = nullptr;       // [ring_rows, 3·heads·dim] raw rows by position mod ring_rows; the last rows are added
  int64_t ring_rows = 0;       // power of two ≥ kernel − 1 + the rows that a roll-back may drop
  const float* taps = nullptr;     // [kernel, 3·heads·dim], tap kernel − 1 is the current row
  const float* f = nullptr;        // [rows, heads·dim]
  const float* dt_bias = nullptr;  // [heads·dim]
  const float* rate = nullptr;     // [heads] exp(A_log)
  float gate_lower_bound = -5.0f;
  float* b = nullptr;  // [rows, heads] in: logits, out: beta = sigmoid(b)
  // Out, each [rows, heads·dim]: q scaled by dim^-0.5, k, v and the log decay g.
  float *q = nullptr, *k = nullptr, *v = nullptr, *g = nullptr;
  Compute compute = Compute::f32;  // rounds what the convolution gives; q and k are then normalised in fp32
};
void kda_conv(device::Threads& threads, const KdaConv& args);

}  // namespace tandem::ops
