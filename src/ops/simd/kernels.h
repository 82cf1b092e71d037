// The inner loops of the CPU operations, compiled once for every instruction set and chosen at run time. All levels
// give the same bits (design.md 1); kernels_test.cc compares them. Loops here are single-threaded; the operations cut
// the work.
//
// Sums. Over a stored dimension (dot products): slices of `slice_length` at absolute positions, 16 lanes with fma
// inside a slice, the fixed tree of vec16.h, slices added in ascending order, two leaves where the matrix has them.
// Value j of a slice belongs to lane j mod 16; against BF16, FP8 and NVFP4 weights to lane (j mod 32)/8·4 + j mod 4,
// the order in which BF16 unpacks (vec16.h, Pair). Over a short list (keys of an attention row, rows of a KDA block):
// one fma a term in ascending order for each output.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/linear/matrix.h"

namespace tandem::ops {

constexpr int64_t slice_length = 1024;
constexpr int64_t max_tile_rows = 128;  // rows of one matmul call

enum class SimdLevel { scalar, neon, avx2, avx512 };

// y[r·y_stride + o] = Σ_k w[o][k]·x[r·x_stride + k] for o in [first_output, last_output), r < rows ≤ max_tile_rows;
// y is indexed by the absolute o. Only columns [first_column, last_column), in leaves cut at w.leaf_columns.
struct MatmulTile {
  const Matrix* w = nullptr;
  int64_t first_output = 0, last_output = 0;
  int64_t first_column = 0, last_column = 0;
  const float* x = nullptr;
  int64_t x_stride = 0, rows = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};

// y[r·y_stride + i] = Σ_k w_rows[i][k]·x[r·x_stride + k], fp32 rows anywhere in memory.
struct DotRows {
  const float* const* w_rows = nullptr;
  int64_t count = 0, k = 0;
  const float* x = nullptr;
  int64_t x_stride = 0, rows = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};

// out[r][d] = init[r][d]·init_scale[r] + Σ_j x[r·x_stride + j·x_step]·row_j[d], ascending j, one fma a term. Rows are
// fp32 pointers, or bf16/fp32 rows of a matrix at `base` + j·`base_stride` bytes.
struct CombineRows {
  const float* const* pointers = nullptr;  // either pointers …
  const std::byte* base = nullptr;         // … or base
  int64_t base_stride = 0;
  bool bf16 = false;
  int64_t count = 0, dims = 0;
  const float* x = nullptr;
  int64_t x_stride = 0, x_step = 1, rows = 0;
  const float* init = nullptr;  // nullptr: 0
  int64_t init_stride = 0;
  const float* init_scale = nullptr;  // nullptr: 1
  float* out = nullptr;
  int64_t out_stride = 0;
};

// EXL3 tiles that follow each other over the inputs, at `tiles` + i·step bytes.
struct Exl3Tiles {
  const std::byte* tiles = nullptr;
  int64_t step = 0, count = 0;
  int bits = 0;
  quant::Exl3Codebook codebook = quant::Exl3Codebook::three_inst;
};
// The order in which tiles pack their 16 inputs: place p belongs to input exl3_panel_row(p).
constexpr int exl3_panel_row(int p) { return 2 * (p >> 2) + (p & 1) + 8 * (p >> 1 & 1); }

// sums[r·16 + o] = Σ over the tiles' inputs of x[r·x_stride + …]·weight of output o, lanes and tree only, no slices; x
// in the order of tiles. rows ≤ Kernels::exl3_most_rows.
struct Exl3Sums {
  Exl3Tiles tiles;
  const float* x = nullptr;
  int64_t x_stride = 0, rows = 0;
  float* sums = nullptr;
};

// y = H(x ∘ scales) by blocks of 128 of `count` inputs, filled up with zeros to whole blocks, in the order of tiles.
// scales: fp16, finite, or one bit an input (set: −1), of whole blocks; may be unaligned.
struct Exl3Inputs {
  const std::byte* scales = nullptr;
  bool signs = false;
  const float* x = nullptr;
  int64_t count = 0;
  float* y = nullptr;
};

struct Kernels {
  SimdLevel level;
  void (*matmul)(const MatmulTile&);  // every format but EXL3, for which see linear/multiply.h
  // panel[output·stride + 16·i + p]: the weight of input 16·i + exl3_panel_row(p) for the 16 outputs of the tiles.
  void (*decode_exl3)(const Exl3Tiles&, float* panel, int64_t stride);
  void (*exl3_sums)(const Exl3Sums&);
  void (*exl3_inputs)(const Exl3Inputs&);
  int64_t exl3_most_rows;  // of exl3_sums: more rows are worth a panel
  void (*dot_rows)(const DotRows&);
  void (*combine_rows)(const CombineRows&);
  float (*dot)(const float* a, const float* b, int64_t n);
  float (*sum)(const float* a, int64_t n);  // lanes and tree only, no slices
  // Element by element over n values.
  void (*exp)(const float* x, int64_t n, float* y);
  void (*sigmoid)(const float* x, int64_t n, float* y);
  void (*silu)(const float* x, int64_t n, float* y);
  void (*scale)(const float* x, float factor, int64_t n, float* y);                     // y = x·factor
  void (*multiply)(const float* x, const float* z, float factor, int64_t n, float* y);  // y = (x·factor)·z
  void (*add)(const float* x, const float* z, int64_t n, float* y);
  void (*subtract)(const float* x, const float* z, int64_t n, float* y);
  void (*accumulate)(float factor, const float* x, int64_t n, float* y);  // y = fma(factor, x, y)
  void (*relu_accumulate)(float weight, float factor, const float* x, int64_t n,
                          float* y);                                     // y = fma(weight, max(x·factor, 0), y)
  void (*exp_minus)(const float* x, float offset, int64_t n, float* y);  // y = exp(x − offset)
  // y = x·exp(a − b); b may be nullptr (0).
  void (*decayed)(const float* x, const float* a, const float* b, int64_t n, float* y);
  // silu(min(gate, limit))·clamp(up, −limit, limit) (spec/model.md 5.1).
  void (*clamped_swiglu)(const float* gate, const float* up, float limit, int64_t n, float* y);
  // lower_bound·sigmoid(rate·(f + bias)) (spec/model.md 3.3).
  void (*decay_gate)(const float* f, const float* bias, float rate, float lower_bound, int64_t n, float* y);
  // silu(Σ_τ taps[τ][c]·rows[τ][c]) over c, ascending τ (spec/model.md 3.2); taps are stored [tap][channel].
  void (*convolve_silu)(const float* const* rows, const float* taps, int64_t taps_stride, int64_t kernel, int64_t n,
                        float* y);
  // a[j] = Σ_d kt[d]·(kj[d]·exp(gt[d] − gj[d])), b[j] likewise with qt, rows j at a stride (design.md 5).
  void (*kda_pairs)(const float* kt, const float* qt, const float* gt, const float* k, const float* g, int64_t stride,
                    int64_t count, int64_t n, float* a, float* b);
  void (*decode_bf16)(const std::byte* x, int64_t n, float* y);  // x may be unaligned
  // The nearest bf16 values, ties to even; a NaN stays a (quiet) NaN. y may be x.
  void (*round_bf16)(const float* x, int64_t n, float* y);
  // What the machine can do, for benchmarks: `rounds` times fma_round multiply-adds in registers; reading n bytes.
  float (*fma_rounds)(int64_t rounds);
  uint64_t (*read_bytes)(const std::byte* data, int64_t n);
};

constexpr int64_t fma_round = 16 * 10;

// The best level of this machine, or the one set by use_simd_level (tests, `--simd`).
const Kernels& kernels();
bool simd_level_available(SimdLevel level);
void use_simd_level(SimdLevel level);  // the caller makes sure it is available

}  // namespace tandem::ops
