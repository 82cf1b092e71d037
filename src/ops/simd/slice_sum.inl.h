// One slice of a dot product against stored weights, for a block of rows and outputs that fits into the registers
// (kernels.h, "Sums"). Part of kernels_<level>.cc.
#pragma once

#include <type_traits>

#include "ops/simd/coded.inl.h"
#include "ops/simd/kernels.h"
#include "ops/simd/vec16.h"

namespace tandem::ops::TANDEM_SIMD_LEVEL {

// How many outputs and rows share their loads: as many accumulators as the registers hold. The choice moves no bit.
constexpr int output_block = 4;
#if defined(TANDEM_SIMD_AVX512)
constexpr int row_block = 6;
#elif defined(TANDEM_SIMD_AVX2)
constexpr int row_block = 2;
#elif defined(TANDEM_SIMD_NEON)
constexpr int row_block = 1;
#else
constexpr int row_block = 1;
#endif

// How a step of 32 weights and their 32 values become two vectors each. BF16 and what is decoded from FP8 use the order
// of Pair, fp32 rows their natural order; zeros fill the last step of a slice.
struct LoadF32 {
  static constexpr bool ordered = false;
  static constexpr int64_t bytes = 4;
  static constexpr bool streamed = false;
  static inline Pair weights(const std::byte* p) {
    Pair out;
    std::memcpy(&out.first, p, sizeof out.first);  // stored fp32 weights may be unaligned
    std::memcpy(&out.second, p + 64, sizeof out.second);
    return out;
  }
  static inline Pair values(const float* p) { return {load(p), load(p + 16)}; }
  static inline Vec weights_half(const std::byte* p, int half) {
    Vec out;
    std::memcpy(&out, p + 64 * half, sizeof out);
    return out;
  }
  static inline Vec values_half(const float* p, int half) { return load(p + 16 * half); }
};
struct LoadBf16 {
  static constexpr bool ordered = false;
  static constexpr int64_t bytes = 2;
  static constexpr bool streamed = true;
  static inline Pair weights(const std::byte* p) { return bf16_pair(p); }
  static inline Pair values(const float* p) { return float_pair(p); }
  static inline Vec weights_half(const std::byte* p, int half) {
    return half == 0 ? bf16_pair(p).first : bf16_pair(p).second;
  }
  static inline Vec values_half(const float* p, int half) {
    return half == 0 ? float_pair(p).first : float_pair(p).second;
  }
};
// A panel of fill_panel(): fp32 in the order of Pair, filled up to whole steps.
struct LoadPanel {
  static constexpr bool ordered = false;
  static constexpr int64_t bytes = 4;
  static constexpr bool streamed = false;
  static inline Pair weights(const std::byte* p) { return LoadF32::weights(p); }
  static inline Pair values(const float* p) { return float_pair(p); }
  static inline Vec weights_half(const std::byte* p, int half) { return LoadF32::weights_half(p, half); }
  static inline Vec values_half(const float* p, int half) { return LoadBf16::values_half(p, half); }
};

// The same weights against values that order_values() has put into the order of Pair, filled up to whole steps.
struct LoadBf16Ordered : LoadBf16 {
  static constexpr bool ordered = true;
  static inline Pair values(const float* p) { return LoadF32::values(p); }
  static inline Vec values_half(const float* p, int half) { return load(p + 16 * half); }
};
struct LoadPanelOrdered : LoadPanel {
  static constexpr bool ordered = true;
  static inline Pair values(const float* p) { return LoadF32::values(p); }
  static inline Vec values_half(const float* p, int half) { return load(p + 16 * half); }
};

// One slice: part[r][o] = Σ_k w[o][k]·x[r][k], k < n; w and x point at the slice's first column.
template <typename Load, int rows, int outputs>
static inline void slice_sum(const std::byte* const* w, const float* x, int64_t x_stride, int64_t n,
                             float (&part)[row_block][output_block]) {
  Vec acc[rows][outputs];
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < outputs; ++o) acc[r][o] = zero();
  }
  int64_t ahead = 0;
  if constexpr (Load::streamed && outputs > 1) {
    // Rows of a stored matrix are read once, in pieces too short for the hardware's prefetcher: ask for the rows that
    // come after this block, 4 KiB or more ahead, a cache line at a time.
    const int64_t block = outputs * (w[1] - w[0]);
    ahead = (prefetch_bytes + block - 1) / block * block;
  }
  int64_t k = 0;
  for (; k + group <= n; k += group) {
    if constexpr (Load::streamed && outputs > 1) {
      for (int o = 0; o < outputs; ++o) __builtin_prefetch(w[o] + k * Load::bytes + ahead);
    }
    if constexpr (rows <= 2) {
      Pair weight[outputs];
      for (int o = 0; o < outputs; ++o) weight[o] = Load::weights(w[o] + k * Load::bytes);
      for (int r = 0; r < rows; ++r) {
        const Pair value = Load::values(x + r * x_stride + k);
        for (int o = 0; o < outputs; ++o) {
          acc[r][o] = fma(weight[o].second, value.second, fma(weight[o].first, value.first, acc[r][o]));
        }
      }
    } else {  // the same in two halves: whole pairs would not fit into the registers beside so many sums
      for (int half = 0; half < 2; ++half) {
        Vec weight[outputs];
        for (int o = 0; o < outputs; ++o) weight[o] = Load::weights_half(w[o] + k * Load::bytes, half);
        for (int r = 0; r < rows; ++r) {
          const Vec value = Load::values_half(x + r * x_stride + k, half);
          for (int o = 0; o < outputs; ++o) acc[r][o] = fma(weight[o], value, acc[r][o]);
        }
      }
    }
  }
  if (k < n) {
    float values[rows][group] = {};
    for (int r = 0; r < rows; ++r) {
      const auto count = Load::ordered ? group : n - k;  // ordered values end with zeros
      std::memcpy(values[r], x + r * x_stride + k, static_cast<size_t>(count) * sizeof(float));
    }
    for (int o = 0; o < outputs; ++o) {
      std::byte rest[group * Load::bytes] = {};
      std::memcpy(rest, w[o] + k * Load::bytes, static_cast<size_t>((n - k) * Load::bytes));
      // A panel is whole steps already, and its order is not that of its columns.
      const Pair weight = Load::weights(std::is_base_of_v<LoadPanel, Load> ? w[o] + k * Load::bytes : rest);
      for (int r = 0; r < rows; ++r) {
        const Pair value = Load::values(values[r]);
        acc[r][o] = fma(weight.second, value.second, fma(weight.first, value.first, acc[r][o]));
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    if constexpr (outputs == 4) {
      reduce4(acc[r][0], acc[r][1], acc[r][2], acc[r][3], part[r]);
    } else {
      for (int o = 0; o < outputs; ++o) part[r][o] = reduce(acc[r][o]);
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
