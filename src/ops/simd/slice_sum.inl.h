// One slice of a dot product against stored weights, for a block of rows and outputs that fits into the registers
// (kernels.h, "Sums"). Part of kernels_<level>.cc.
#pragma once

#include <type_traits>

#include "ops/simd/coded.inl.h"
#include "ops/simd/kernels.h"
#include "ops/simd/vec16.h"

namespace tandem::ops::TANDEM_SIMD_LEVEL {

// How many outputs and rows share their loads: as many accumulators as the registers hold. The choice moves no bit.
// Blocks of up to pair_rows rows take whole pairs of vectors at a time, larger ones outputs_together(rows) outputs.
constexpr int output_block = 4;
#if defined(TANDEM_SIMD_AVX512)
constexpr int row_block = 6, pair_rows = 2;
constexpr int outputs_together(int) { return output_block; }
#elif defined(TANDEM_SIMD_AVX2)
constexpr int row_block = 4, pair_rows = 1;
constexpr int outputs_together(int rows) { return rows <= 2 ? output_block : output_block / 2; }
#else
constexpr int row_block = 1, pair_rows = 1;
constexpr int outputs_together(int) { return output_block; }
#endif

// How a step of 32 weights and their 32 values become two vectors each. BF16 and what is decoded from FP8 use the order
// of Pair, fp32 rows their natural order; zeros fill the last step of a slice.
struct LoadF32 {
  static constexpr bool ordered = false;
  static constexpr int64_t bytes = 4;
  static constexpr bool streamed = false;
  static inline Pair weights(const std::byte* p) { return {load_floats(p), load_floats(p + 64)}; }
  static inline Pair values(const float* p) { return {load(p), load(p + 16)}; }
  static inline Part weights_part(const std::byte* p, int part, int half) {
    return part_load(p + 64 * half + 4 * part_lanes * part);
  }
  static inline Part values_part(const float* p, int part, int half) {
    return part_load(p + 16 * half + part_lanes * part);
  }
};
struct LoadBf16 {
  static constexpr bool ordered = false;
  static constexpr int64_t bytes = 2;
  static constexpr bool streamed = true;
  static inline Pair weights(const std::byte* p) { return bf16_pair(p); }
  static inline Pair values(const float* p) { return float_pair(p); }
  static inline Part weights_part(const std::byte* p, int part, int half) { return bf16_part(p, part, half); }
  static inline Part values_part(const float* p, int part, int half) { return float_part(p, part, half); }
};
// A panel of fill_panel(): fp32 in the order of Pair, filled up to whole steps.
struct LoadPanel {
  static constexpr bool ordered = false;
  static constexpr int64_t bytes = 4;
  static constexpr bool streamed = false;
  static inline Pair weights(const std::byte* p) { return LoadF32::weights(p); }
  static inline Pair values(const float* p) { return float_pair(p); }
  static inline Part weights_part(const std::byte* p, int part, int half) {
    return LoadF32::weights_part(p, part, half);
  }
  static inline Part values_part(const float* p, int part, int half) { return float_part(p, part, half); }
};

// The same weights against values that order_values() has put into the order of Pair, filled up to whole steps.
struct LoadBf16Ordered : LoadBf16 {
  static constexpr bool ordered = true;
  static inline Pair values(const float* p) { return LoadF32::values(p); }
  static inline Part values_part(const float* p, int part, int half) { return LoadF32::values_part(p, part, half); }
};
struct LoadPanelOrdered : LoadPanel {
  static constexpr bool ordered = true;
  static inline Pair values(const float* p) { return LoadF32::values(p); }
  static inline Part values_part(const float* p, int part, int half) { return LoadF32::values_part(p, part, half); }
};

// How far ahead stored rows are asked for: they are read once, in pieces too short for the hardware's prefetcher, so
// ask for the rows that come after these, 4 KiB or more ahead, a cache line at a time.
template <int outputs>
static inline int64_t bytes_ahead(const std::byte* const* w) {
  int64_t ahead = outputs * (w[1] - w[0]);
  while (ahead < prefetch_bytes) ahead += ahead;
  return ahead;
}

// The unfinished last step of a slice, filled up with zeros.
template <typename Load, int rows, int outputs>
struct LastStep {
  float x[rows][group] = {};
  std::byte w[outputs][group * Load::bytes] = {};

  LastStep(const std::byte* const* weights, const float* values, int64_t x_stride, int64_t k, int64_t n) {
    const auto count = Load::ordered ? group : n - k;  // ordered values end with zeros
    for (int r = 0; r < rows; ++r)
      std::memcpy(x[r], values + r * x_stride + k, static_cast<size_t>(count) * sizeof(float));
    // A panel is whole steps already, and its order is not that of its columns.
    const int64_t stored = std::is_base_of_v<LoadPanel, Load> ? group : n - k;
    for (int o = 0; o < outputs; ++o)
      std::memcpy(w[o], weights[o] + k * Load::bytes, static_cast<size_t>(stored * Load::bytes));
  }
};

// The lanes of a block of few sums, which fit into the registers as whole vectors.
template <typename Load, int rows, int outputs>
static inline void few_lanes(const std::byte* const* w, const float* x, int64_t x_stride, int64_t n,
                             Vec (&acc)[rows][outputs]) {
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < outputs; ++o) acc[r][o] = zero();
  }
  int64_t ahead = 0;
  if constexpr (Load::streamed && outputs > 1) ahead = bytes_ahead<outputs>(w);
  int64_t k = 0;
  for (; k + group <= n; k += group) {
    if constexpr (Load::streamed && outputs > 1) {
      for (int o = 0; o < outputs; ++o) __builtin_prefetch(w[o] + k * Load::bytes + ahead);
    }
    Pair weight[outputs];
    for (int o = 0; o < outputs; ++o) weight[o] = Load::weights(w[o] + k * Load::bytes);
    for (int r = 0; r < rows; ++r) {
      const Pair value = Load::values(x + r * x_stride + k);
      for (int o = 0; o < outputs; ++o) {
        acc[r][o] = fma(weight[o].second, value.second, fma(weight[o].first, value.first, acc[r][o]));
      }
    }
  }
  if (k == n) return;
  const LastStep<Load, rows, outputs> last(w, x, x_stride, k, n);
  for (int o = 0; o < outputs; ++o) {
    const Pair weight = Load::weights(last.w[o]);
    for (int r = 0; r < rows; ++r) {
      const Pair value = Load::values(last.x[r]);
      acc[r][o] = fma(weight.second, value.second, fma(weight.first, value.first, acc[r][o]));
    }
  }
}

// Lanes of one part of a larger block, a step in two halves: beside so many sums there is no room for whole pairs.
template <typename Load, int part, int rows, int outputs>
static inline void many_lanes(const std::byte* const* w, const float* x, int64_t x_stride, int64_t n,
                              Part (&acc)[rows][outputs]) {
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < outputs; ++o) acc[r][o] = part_zero();
  }
  constexpr bool asks_ahead = Load::streamed && outputs > 1 && part == 0;
  int64_t ahead = 0;
  if constexpr (asks_ahead) ahead = bytes_ahead<outputs>(w);
  int64_t k = 0;
  for (; k + group <= n; k += group) {
    if constexpr (asks_ahead) {
      for (int o = 0; o < outputs; ++o) __builtin_prefetch(w[o] + k * Load::bytes + ahead);
    }
    for (int half = 0; half < 2; ++half) {
      Part weight[outputs];
      for (int o = 0; o < outputs; ++o) weight[o] = Load::weights_part(w[o] + k * Load::bytes, part, half);
      for (int r = 0; r < rows; ++r) {
        const Part value = held(Load::values_part(x + r * x_stride + k, part, half));
        for (int o = 0; o < outputs; ++o) acc[r][o] = part_fma(weight[o], value, acc[r][o]);
      }
    }
  }
  if (k == n) return;
  const LastStep<Load, rows, outputs> last(w, x, x_stride, k, n);
  for (int half = 0; half < 2; ++half) {
    for (int o = 0; o < outputs; ++o) {
      const Part weight = Load::weights_part(last.w[o], part, half);
      for (int r = 0; r < rows; ++r) acc[r][o] = part_fma(weight, Load::values_part(last.x[r], part, half), acc[r][o]);
    }
  }
}

// The parts from `part` on.
template <typename Load, int part, int rows, int outputs>
static inline void lanes_from(const std::byte* const* w, const float* x, int64_t x_stride, int64_t n,
                              Vec (&lanes)[rows][outputs]) {
  Part acc[rows][outputs];
  many_lanes<Load, part>(w, x, x_stride, n, acc);
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < outputs; ++o) set_part(lanes[r][o], part, acc[r][o]);
  }
  if constexpr (part + 1 < parts) lanes_from<Load, part + 1>(w, x, x_stride, n, lanes);
}

// The lanes of `together` outputs from `first` on, folded.
template <typename Load, int rows, int outputs, int together>
static inline void folded_lanes(const std::byte* const* w, const float* x, int64_t x_stride, int64_t n,
                                Fold (&sums)[rows][outputs], int first) {
  Vec lanes[rows][together];
  if constexpr (rows <= pair_rows) {
    few_lanes<Load>(w + first, x, x_stride, n, lanes);
  } else {
    lanes_from<Load, 0>(w + first, x, x_stride, n, lanes);
  }
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < together; ++o) sums[r][first + o] = fold(lanes[r][o]);
  }
}

// One slice: part[r][o] = Σ_k w[o][k]·x[r][k], k < n; w and x point at the slice's first column.
template <typename Load, int rows, int outputs>
static inline void slice_sum(const std::byte* const* w, const float* x, int64_t x_stride, int64_t n,
                             float (&part)[row_block][output_block]) {
  constexpr int together = outputs < outputs_together(rows) ? outputs : outputs_together(rows);
  Fold sums[rows][outputs];
  for (int first = 0; first < outputs; first += together)
    folded_lanes<Load, rows, outputs, together>(w, x, x_stride, n, sums, first);
  for (int r = 0; r < rows; ++r) {
    if constexpr (outputs == 4) {
      reduce4(sums[r][0], sums[r][1], sums[r][2], sums[r][3], part[r]);
    } else {
      for (int o = 0; o < outputs; ++o) part[r][o] = reduce(sums[r][o]);
    }
  }
}

template <typename Load, int outputs>
static inline void slice_sum_rows(int64_t rows, const std::byte* const* w, const float* x, int64_t x_stride, int64_t n,
                                  float (&part)[row_block][output_block]) {
  static_assert(row_block <= 6);
  switch (rows) {
    case 1: return slice_sum<Load, 1, outputs>(w, x, x_stride, n, part);
    case 2:
      if constexpr (row_block >= 2) return slice_sum<Load, 2, outputs>(w, x, x_stride, n, part);
      break;
    case 3:
      if constexpr (row_block >= 3) return slice_sum<Load, 3, outputs>(w, x, x_stride, n, part);
      break;
    case 4:
      if constexpr (row_block >= 4) return slice_sum<Load, 4, outputs>(w, x, x_stride, n, part);
      break;
    case 5:
      if constexpr (row_block >= 5) return slice_sum<Load, 5, outputs>(w, x, x_stride, n, part);
      break;
    default:
      if constexpr (row_block >= 6) return slice_sum<Load, 6, outputs>(w, x, x_stride, n, part);
      break;
  }
}

template <typename Load>
static inline void slice_sum_any(int64_t rows, int64_t outputs, const std::byte* const* w, const float* x,
                                 int64_t x_stride, int64_t n, float (&part)[row_block][output_block]) {
  if (outputs == output_block) return slice_sum_rows<Load, output_block>(rows, w, x, x_stride, n, part);
  for (int64_t o = 0; o < outputs; ++o) {  // the ragged end of a matrix
    float one[row_block][output_block] = {};
    slice_sum_rows<Load, 1>(rows, w + o, x, x_stride, n, one);
    for (int64_t r = 0; r < rows; ++r) part[r][o] = one[r][0];
  }
}

}  // namespace tandem::ops::TANDEM_SIMD_LEVEL
