// FP8 and NVFP4 weights as fp32, a step of 32 at a time in the order of Pair. Part of kernels_<level>.cc.
//
// Codes are not looked up but computed: an e4m3 code has the layout of fp32 with another bias, twice an e2m1 value is a
// small integer. Both are exact, so values have the bits of the tables of quant/; only the sign of a zero may differ,
// which no sum that begins with +0 shows.
#pragma once

#include "ops/simd/fp8.h"
#include "ops/simd/kernels.h"
#include "ops/simd/vec16.h"
#include "quant/nvfp4.h"

namespace tandem::ops::TANDEM_SIMD_LEVEL {

constexpr int64_t group = 32;  // values of a step

// Matrix::stride(), which must not be called here: it is inline in a shared namespace (vec16.h).
static inline int64_t stored_columns(const Matrix& w) { return w.row_stride == 0 ? w.in_features : w.row_stride; }

static inline void decode_fp8(const Matrix& w, int64_t output, int64_t column, int64_t n, float* out) {
  const int64_t scale_row = (w.block_row + output) / 128;
  const int64_t columns = (stored_columns(w) + 127) / 128, first = w.first_column + column;
  const std::byte* codes = w.data + output * stored_columns(w) + column;
  for (int64_t k = 0; k < n; ++k) {
    float scale;
    std::memcpy(&scale, w.block_scales + 4 * (scale_row * columns + (first + k) / 128), 4);
    out[k] = fp8_e4m3_values[static_cast<uint8_t>(codes[k])] * scale;
  }
}

// Whether weights are always decoded into a panel first.
static inline bool is_coded(const Matrix& w) {
  return w.format == WeightFormat::fp8_block || w.format == WeightFormat::nvfp4;
}

// Up to a step of 32 values; `column` is a multiple of 16 of the stored matrix.
static inline void decode_nvfp4(const Matrix& w, int64_t output, int64_t column, int64_t n, float* out) {
  const int64_t first = output * stored_columns(w) + column;
  const int even = w.high_nibble_first ? 4 : 0, odd = 4 - even;
  for (int64_t k = 0; k < n; k += quant::nvfp4_group) {
    const float scale = fp8_e4m3_values[static_cast<uint8_t>(w.block_scales[(first + k) / quant::nvfp4_group])];
    for (int64_t i = k; i < k + quant::nvfp4_group && i < n; i += 2) {
      const int pair = static_cast<int>(w.data[(first + i) / 2]);
      out[i] = quant::e2m1_values[pair >> even & 15] * scale * w.outer_scale;
      out[i + 1] = quant::e2m1_values[pair >> odd & 15] * scale * w.outer_scale;
    }
  }
}

#if defined(TANDEM_SIMD_AVX512) || defined(TANDEM_SIMD_AVX2)

static inline __m256 fp8_values8(const std::byte* codes, __m256 scale) {
  const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(codes)));
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
  // Exponent 0 has no leading one: as if it were 1, less that one. (A multiplication would meet subnormal fp32, which
  // is slow on some machines.)
  const __m256i subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude);
  const __m256i bias = _mm256_sub_epi32(_mm256_set1_epi32(120), subnormal);
  const __m256i bits = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_slli_epi32(bias, 23));
  const __m256 one = _mm256_and_ps(_mm256_castsi256_ps(subnormal), _mm256_set1_ps(0x1p-6f));
  const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(code, magnitude), 24);
  const __m256 value = _mm256_or_ps(_mm256_sub_ps(_mm256_castsi256_ps(bits), one), _mm256_castsi256_ps(sign));
  const __m256 nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f)));
  return _mm256_mul_ps(_mm256_or_ps(value, nan), scale);
}

// Twice the e2m1 values of 32 columns from 16 bytes, as bytes in the order of the columns.
static inline __m256i nvfp4_doubled(const std::byte* codes, bool high_nibble_first) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(codes));
  const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
  const __m128i even = high_nibble_first ? high : low, odd = high_nibble_first ? low : high;
  const __m256i nibbles = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
  const __m128i doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(doubled), nibbles);
}
static inline __m256 nvfp4_values8(__m128i doubled, float scale, float outer) {
  const __m256 value = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(doubled));
  return _mm256_mul_ps(_mm256_mul_ps(value, _mm256_set1_ps(0.5f * scale)), _mm256_set1_ps(outer));
}

// Four runs of eight values as a Pair.
static inline Pair pair_of(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 first_low = _mm256_permute2f128_ps(a, b, 0x20), first_high = _mm256_permute2f128_ps(c, d, 0x20);
  const __m256 second_low = _mm256_permute2f128_ps(a, b, 0x31), second_high = _mm256_permute2f128_ps(c, d, 0x31);
#if defined(TANDEM_SIMD_AVX512)
  return {{_mm512_insertf32x8(_mm512_castps256_ps512(first_low), first_high, 1)},
          {_mm512_insertf32x8(_mm512_castps256_ps512(second_low), second_high, 1)}};
#else
  return {{first_low, first_high}, {second_low, second_high}};
#endif
}

// A whole step with one scale (FP8) or two (NVFP4).
static inline Pair whole_coded_pair(const Matrix& w, int64_t output, int64_t column) {
  if (w.format == WeightFormat::fp8_block) {
    const std::byte* codes = w.data + output * stored_columns(w) + column;
    const int64_t columns = (stored_columns(w) + 127) / 128, block = (w.first_column + column) / 128;
    float scale;
    std::memcpy(&scale, w.block_scales + 4 * ((w.block_row + output) / 128 * columns + block), 4);
    const __m256 scales = _mm256_set1_ps(scale);
    return pair_of(fp8_values8(codes, scales), fp8_values8(codes + 8, scales), fp8_values8(codes + 16, scales),
                   fp8_values8(codes + 24, scales));
  }
  const int64_t first = output * stored_columns(w) + column;
  const std::byte* scales = w.block_scales + first / quant::nvfp4_group;
  const float scale0 = fp8_e4m3_values[static_cast<uint8_t>(scales[0])];
  const float scale1 = fp8_e4m3_values[static_cast<uint8_t>(scales[1])];
  const __m256i doubled = nvfp4_doubled(w.data + first / 2, w.high_nibble_first);
  const __m128i low = _mm256_castsi256_si128(doubled), high = _mm256_extracti128_si256(doubled, 1);
  return pair_of(
      nvfp4_values8(low, scale0, w.outer_scale), nvfp4_values8(_mm_srli_si128(low, 8), scale0, w.outer_scale),
      nvfp4_values8(high, scale1, w.outer_scale), nvfp4_values8(_mm_srli_si128(high, 8), scale1, w.outer_scale));
}

#endif

// `count` ≤ 32 weights from `column` on, filled up with zeros.
static inline Pair coded_pair(const Matrix& w, int64_t output, int64_t column, int64_t count) {
#if defined(TANDEM_SIMD_AVX512) || defined(TANDEM_SIMD_AVX2)
  const bool one_block = w.format != WeightFormat::fp8_block || (w.first_column + column) % 128 <= 128 - group;
  if (count == group && one_block) return whole_coded_pair(w, output, column);
#endif
  float values[group] = {};
  if (w.format == WeightFormat::fp8_block) {
    decode_fp8(w, output, column, count, values);
  } else {
    decode_nvfp4(w, output, column, count, values);
  }
  return float_pair(values);
}

}  // namespace tandem::ops::TANDEM_SIMD_LEVEL
