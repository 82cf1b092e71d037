// What host code tells mhc.cu.
#pragma once

#include "device/kernel_types.h"

namespace tandem::ops {

// The kernels are written for hc_mult = 4, as every GLM-5.3-Flash has it.
constexpr int32_t cuda_streams = 4;
constexpr int32_t mhc_outputs = (2 + cuda_streams) * cuda_streams;  // of the mapping
// The mapping's sum over the n · hidden stream values is cut into pieces: this many columns of all streams.
constexpr int32_t mhc_piece = 128;
constexpr int32_t mhc_partials =
    32;  // fp32 of a row and piece in scratch: mhc_outputs sums, the sum of squares, unused

// The parameters of one site (spec/model.md 2.3).
struct CudaMhcSite {
  const device::bf16* fn;  // [mhc_outputs, n · hidden], aligned to 16 bytes
  const float* base;       // [mhc_outputs]
  const float* scale;      // [3]: pre, post, comb
  const float* norm;       // [hidden]: the sub-layer's input norm
};

// Rows of a step between two sub-layers.
struct CudaMhcRows {
  const int32_t* rows;    // how many there are
  device::bf16* streams;  // [rows, n, hidden], aligned to 16 bytes; hidden is a multiple of 8
  float* post;            // [rows, n]
  float* comb;            // [rows, n (source), n (destination)]
  float* scratch;         // CudaMhc::scratch_bytes
};

struct MhcMapArgs {
  CudaMhcRows at;
  const device::bf16* fn;  // nullptr: leave only
  const device::bf16* y;   // [rows, hidden] output of the sub-layer before; nullptr: enter only
  int64_t y_stride;
  int32_t hidden;
};

struct MhcEnterArgs {
  CudaMhcRows at;
  CudaMhcSite site;
  device::bf16* x;  // [rows, hidden] at x_stride
  int64_t x_stride;
  int32_t hidden, sinkhorn_iters;
  int32_t mix_blocks;  // blocks that compute post and comb, before those that compute x
  float hc_eps, rms_norm_eps;
};

// The mean of the streams, normed (the end of the model) or not (what a drafter taps).
struct MhcMeanArgs {
  const int32_t* rows;
  const int32_t* row_list;      // out row i is of streams row row_list[i]; nullptr: of row i
  const device::bf16* streams;  // [rows, n, hidden]
  const float* norm;            // [hidden]; nullptr: the mean alone
  device::bf16* out;
  int64_t out_stride;
  int32_t hidden;
  float eps;
};

}  // namespace tandem::ops
