// What EXL3 does with x before tiles are multiplied by it (kernels.h, Exl3Inputs). Part of kernels_<level>.cc.
#pragma once

#include "ops/simd/kernels.h"
#include "ops/simd/vec16.h"
#include "quant/hadamard.h"

namespace tandem::ops::TANDEM_SIMD_LEVEL {

// exl3_transform: y = H of the 128 values in v, in the order in which tiles pack their inputs. The additions are those
// of quant/hadamard.h, in its order.
#if defined(TANDEM_SIMD_AVX2) || defined(TANDEM_SIMD_AVX512)

// Each value and the one `distance` lanes on become their sum and their difference.
template <int distance>
static inline Vec butterfly(Vec a) {
#if defined(TANDEM_SIMD_AVX512)
  __m512 other;
  if constexpr (distance == 1) other = _mm512_permute_ps(a.v, 0xB1);
  if constexpr (distance == 2) other = _mm512_permute_ps(a.v, 0x4E);
  if constexpr (distance == 4) other = _mm512_shuffle_f32x4(a.v, a.v, 0xB1);
  if constexpr (distance == 8) other = _mm512_shuffle_f32x4(a.v, a.v, 0x4E);
  constexpr __mmask16 second = distance == 1 ? 0xAAAA : distance == 2 ? 0xCCCC : distance == 4 ? 0xF0F0 : 0xFF00;
  return {_mm512_mask_sub_ps(_mm512_add_ps(a.v, other), second, other, a.v)};
#else
  if constexpr (distance == 8) {
    return {_mm256_add_ps(a.lo, a.hi), _mm256_sub_ps(a.lo, a.hi)};
  } else {
    const auto half = [](__m256 x) {
      __m256 other;
      if constexpr (distance == 1) other = _mm256_permute_ps(x, 0xB1);
      if constexpr (distance == 2) other = _mm256_permute_ps(x, 0x4E);
      if constexpr (distance == 4) other = _mm256_permute2f128_ps(x, x, 0x01);
      constexpr int second = distance == 1 ? 0xAA : distance == 2 ? 0xCC : 0xF0;
      return _mm256_blend_ps(_mm256_add_ps(x, other), _mm256_sub_ps(other, x), second);
    };
    return {half(a.lo), half(a.hi)};
  }
#endif
}

static inline Vec exl3_packed_order(Vec a) {
#if defined(TANDEM_SIMD_AVX512)
  return {_mm512_permutexvar_ps(_mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15), a.v)};
#else
  const __m256d low = _mm256_castps_pd(a.lo), high = _mm256_castps_pd(a.hi);
  const __m256d even = _mm256_unpacklo_pd(low, high), odd = _mm256_unpackhi_pd(low, high);
  return {_mm256_castpd_ps(_mm256_permute2f128_pd(even, odd, 0x20)),
          _mm256_castpd_ps(_mm256_permute2f128_pd(even, odd, 0x31))};
#endif
}

static inline void exl3_transform(Vec (&v)[8], float* y) {
  for (Vec& a : v) a = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(a))));
  for (int distance = 1; distance < 8; distance *= 2)
    for (int i = 0; i < 8; ++i) {
      if ((i & distance) != 0) continue;
      const Vec a = v[i], b = v[i + distance];
      v[i] = add(a, b);
      v[i + distance] = sub(a, b);
    }
  for (int i = 0; i < 8; ++i) store(y + 16 * i, exl3_packed_order(mul(v[i], set1(quant::hadamard_factor))));
}

#else

static inline void exl3_transform(Vec (&v)[8], float* y) {
  float x[exl3_block];
  for (int i = 0; i < 8; ++i) store(x + 16 * i, v[i]);
  for (int64_t distance = 1; distance < exl3_block; distance *= 2)
    for (int64_t base = 0; base < exl3_block; base += 2 * distance)
      for (int64_t i = base; i < base + distance; ++i) {
        const float a = x[i], b = x[i + distance];
        x[i] = a + b;
        x[i + distance] = a - b;
      }
  for (int64_t i = 0; i < exl3_block; ++i)
    y[i] = x[i / 16 * 16 + exl3_panel_row(static_cast<int>(i % 16))] * quant::hadamard_factor;
}

#endif

static void exl3_inputs(const Exl3Inputs& p) {
  for (int64_t first = 0; first < p.count; first += exl3_block) {
    const int64_t count = p.count - first < exl3_block ? p.count - first : exl3_block;
    float scales[exl3_block], x[exl3_block] = {};
    if (p.signs) {
      for (int64_t i = 0; i < exl3_block; ++i)
        scales[i] = (static_cast<int>(p.scales[(first + i) / 8]) >> ((first + i) % 8) & 1) != 0 ? -1.0f : 1.0f;
    } else {
      for (int64_t i = 0; i < exl3_block; i += 16) store(scales + i, load_f16(p.scales + 2 * (first + i)));
    }
    Vec v[8];
    if (count == exl3_block) {
      for (int i = 0; i < 8; ++i) v[i] = mul(load(p.x + first + 16 * i), load(scales + 16 * i));
    } else {
      for (int64_t i = 0; i < count; ++i) x[i] = p.x[first + i] * scales[i];
      for (int i = 0; i < 8; ++i) v[i] = load(x + 16 * i);
    }
    exl3_transform(v, p.y + first);
  }
}

}  // namespace tandem::ops::TANDEM_SIMD_LEVEL
