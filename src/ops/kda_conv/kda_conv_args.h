// What host code tells kda_conv.cu.
#pragma once

#include "ops/step_view.h"

namespace tandem::ops {

constexpr int32_t kda_ring_rows = 32;  // rows of a slot's rings and logs, by position (cache::ring_rows)
constexpr int32_t kda_max_taps = 4;    // longest short convolution that the kernels hold in registers

// For every row of the step: convolution, SiLU and normalisation of q, k and v, the log decay and beta (kda_conv.h).
// Widths are heads · TANDEM_KDA_DIM; rows lie `_stride` values apart where a stride is given, else one after the other.
struct KdaConvArgs {
  StepView step;
  const device::bf16* raw;  // [rows, 3·width] q|k|v before the convolution
  const device::bf16* f;    // [rows, width] projections of the decay gate
  const device::bf16* b;    // [rows, heads] logits of beta
  int64_t raw_stride, f_stride, b_stride;
  SlotView<device::bf16> ring;  // [kda_ring_rows, 3·width] raw rows by position; the last rows of each segment go in
  const float* taps;            // [kernel, 3·width], tap kernel − 1 is the current row
  const float* dt_bias;         // [width]
  const float* rate;            // [heads] exp(A_log)
  float gate_lower_bound;
  int32_t heads;
  int32_t kernel;  // 1 … kda_max_taps
  // Out. q is scaled by dim^-0.5, g is the log decay, beta the sigmoid of b.
  float *q, *k, *g;      // [rows, width]
  device::bf16* v;       // [rows, width]
  float* beta;           // [rows, heads]
  int32_t rows_of_warp;  // CudaKdaConv fills it
};

// o ← o·rsqrt(mean_d(o²) + eps)·weight[d]·sigmoid(gate) for every head of every row, one rounding (kda_output.h).
struct KdaOutputArgs {
  const int32_t* rows;       // how many there are
  const device::bf16* o;     // [rows, width]
  const device::bf16* gate;  // [rows, width]
  int64_t gate_stride;
  const float* weight;  // [TANDEM_KDA_DIM]
  float eps;
  int32_t heads;
  device::bf16* out;  // [rows, width]; may be o
};

}  // namespace tandem::ops
