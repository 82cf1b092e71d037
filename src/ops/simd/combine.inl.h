// Sums over short lists: out[r] = init[r] + Σ_j x[r][j]·row_j, ascending j, one fma a term (kernels.h, CombineRows).
// Part of kernels_<level>.cc.
#pragma once

#include "ops/simd/kernels.h"
#include "ops/simd/vec16.h"

namespace tandem::ops::TANDEM_SIMD_LEVEL {

#if defined(TANDEM_SIMD_AVX512)
constexpr int combine_rows_block = 4, combine_vectors = 4;
#elif defined(TANDEM_SIMD_AVX2)
constexpr int combine_rows_block = 2, combine_vectors = 2;
#else
constexpr int combine_rows_block = 1, combine_vectors = 2;
#endif

struct PointerRows {
  static inline Vec full(const CombineRows& c, int64_t j, int64_t d) { return load(c.pointers[j] + d); }
  static inline Vec partial(const CombineRows& c, int64_t j, int64_t d, int64_t n) {
    return load_partial(c.pointers[j] + d, n);
  }
};
struct FloatRows {
  static inline Vec full(const CombineRows& c, int64_t j, int64_t d) {
    return load_floats(c.base + j * c.base_stride + 4 * d);
  }
  static inline Vec partial(const CombineRows& c, int64_t j, int64_t d, int64_t n) {
    float lanes[16] = {};
    std::memcpy(lanes, c.base + j * c.base_stride + 4 * d, static_cast<size_t>(n) * sizeof(float));
    return load(lanes);
  }
};
struct Bf16Rows {
  static inline Vec full(const CombineRows& c, int64_t j, int64_t d) {
    return load_bf16(c.base + j * c.base_stride + 2 * d);
  }
  static inline Vec partial(const CombineRows& c, int64_t j, int64_t d, int64_t n) {
    return load_bf16_partial(c.base + j * c.base_stride + 2 * d, n);
  }
};

template <typename Rows, int rows, int vectors>
static inline void combine_block(const CombineRows& c, int64_t r, int64_t d) {
  Vec acc[rows][vectors];
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) {
      acc[i][v] = c.init ? load(c.init + (r + i) * c.init_stride + d + 16 * v) : zero();
      if (c.init_scale) acc[i][v] = mul(acc[i][v], set1(c.init_scale[r + i]));
    }
  }
  const float* x = c.x + r * c.x_stride;
  for (int64_t j = 0; j < c.count; ++j) {
    Vec row[vectors];
    for (int v = 0; v < vectors; ++v) row[v] = Rows::full(c, j, d + 16 * v);
    for (int i = 0; i < rows; ++i) {
      const Vec factor = set1(x[i * c.x_stride + j * c.x_step]);
      for (int v = 0; v < vectors; ++v) acc[i][v] = fma(factor, row[v], acc[i][v]);
    }
  }
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) store(c.out + (r + i) * c.out_stride + d + 16 * v, acc[i][v]);
  }
}

template <typename Rows>
static inline void combine_tail(const CombineRows& c, int64_t r, int64_t d, int64_t n) {
  Vec acc = c.init ? load_partial(c.init + r * c.init_stride + d, n) : zero();
  if (c.init_scale) acc = mul(acc, set1(c.init_scale[r]));
  for (int64_t j = 0; j < c.count; ++j) {
    acc = fma(set1(c.x[r * c.x_stride + j * c.x_step]), Rows::partial(c, j, d, n), acc);
  }
  store_partial(c.out + r * c.out_stride + d, acc, n);
}

template <typename Rows>
static inline void combine(const CombineRows& c) {
  constexpr int64_t wide = 16 * combine_vectors;
  int64_t d = 0;
  for (; d + wide <= c.dims; d += wide) {
    int64_t r = 0;
    for (; r + combine_rows_block <= c.rows; r += combine_rows_block)
      combine_block<Rows, combine_rows_block, combine_vectors>(c, r, d);
    for (; combine_rows_block > 2 && r + 2 <= c.rows; r += 2) combine_block<Rows, 2, combine_vectors>(c, r, d);
    for (; r < c.rows; ++r) combine_block<Rows, 1, combine_vectors>(c, r, d);
  }
  for (; d + 16 <= c.dims; d += 16) {
    for (int64_t r = 0; r < c.rows; ++r) combine_block<Rows, 1, 1>(c, r, d);
  }
  if (d < c.dims) {
    for (int64_t r = 0; r < c.rows; ++r) combine_tail<Rows>(c, r, d, c.dims - d);
  }
}

static void combine_rows(const CombineRows& c) {
  if (c.pointers) return combine<PointerRows>(c);
  if (c.bf16) return combine<Bf16Rows>(c);
  combine<FloatRows>(c);
}

}  // namespace tandem::ops::TANDEM_SIMD_LEVEL
