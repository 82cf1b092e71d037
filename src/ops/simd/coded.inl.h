// FP8 and NVFP4 weights as fp32, a step of 32 at a time in the order of Pair. Part of kernels_<level>.cc.
//
// Vector code does not look codes up but computes them: an e4m3 code is an fp16 number with another bias, an e2m1 code
// has so few magnitudes that a byte shuffle knows them. Both are exact, so values have the bits of the tables of
// quant/; only the sign of a zero may differ, which no sum that begins with +0 shows. What vectors do not do (NaN
// codes, scales near the largest number, the end of a row) goes through the tables.
#pragma once

#include "ops/simd/fp8.h"
#include "ops/simd/kernels.h"
#include "ops/simd/vec16.h"
#include "quant/nvfp4.h"

namespace tandem::ops::TANDEM_SIMD_LEVEL {

constexpr int64_t group = 32;             // values of a step
constexpr int64_t prefetch_bytes = 4096;  // how far ahead stored rows are asked for

// Matrix::stride(), which must not be called here: it is inline in a shared namespace (vec16.h).
static inline int64_t stored_columns(const Matrix& w) { return w.row_stride == 0 ? w.in_features : w.row_stride; }

// Whether weights must be decoded before they are multiplied.
static inline bool is_coded(const Matrix& w) {
  return w.format == WeightFormat::fp8_block || w.format == WeightFormat::nvfp4;
}

static inline float fp8_scale(const Matrix& w, int64_t index) {
  if (w.scale_format == quant::Fp8ScaleFormat::f32) {
    float scale;
    std::memcpy(&scale, w.block_scales + 4 * index, 4);
    return scale;
  }
  std::byte lanes[32] = {};
  std::memcpy(lanes, w.block_scales + 2 * index, 2);
  float scales[16];
  store(scales, w.scale_format == quant::Fp8ScaleFormat::bf16 ? load_bf16(lanes) : load_f16(lanes));
  return scales[0];
}

// Index of the first scale of a row of blocks.
static inline int64_t fp8_scale_row(const Matrix& w, int64_t output) {
  return (w.block_row + output) / quant::fp8_block * ((stored_columns(w) + quant::fp8_block - 1) / quant::fp8_block);
}

static inline void decode_fp8(const Matrix& w, int64_t output, int64_t column, int64_t n, float* out) {
  const int64_t scale_row = fp8_scale_row(w, output), first = w.first_column + column;
  const std::byte* codes = w.data + output * stored_columns(w) + column;
  float scale = 0;
  for (int64_t k = 0; k < n; ++k) {
    if (k == 0 || (first + k) % quant::fp8_block == 0) scale = fp8_scale(w, scale_row + (first + k) / quant::fp8_block);
    out[k] = fp8_e4m3_values[static_cast<uint8_t>(codes[k])] * scale;
  }
}

// `column` is a multiple of 16 of the stored matrix.
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

// `count` ≤ 32 weights from `column` on by the tables, filled up with zeros.
static inline Pair coded_pair(const Matrix& w, int64_t output, int64_t column, int64_t count) {
  float values[group] = {};
  if (w.format == WeightFormat::fp8_block) {
    decode_fp8(w, output, column, count, values);
  } else {
    decode_nvfp4(w, output, column, count, values);
  }
  return float_pair(values);
}

#if defined(TANDEM_SIMD_AVX512) || defined(TANDEM_SIMD_AVX2)

// Sixteen fp16 numbers.
static inline Vec from_f16(__m256i halves) {
#if defined(TANDEM_SIMD_AVX512)
  return {_mm512_cvtph_ps(halves)};
#else
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
#endif
}

// Whole steps of one output of an FP8 matrix from `column` on, in ascending order.
struct Fp8Steps {
  // Whether a step never crosses a border of blocks.
  static bool can_read(const Matrix& w, int64_t column) { return (w.first_column + column) % group == 0; }

  Fp8Steps(const Matrix& w, int64_t output, int64_t column)
      : w_(w),
        codes_(w.data + output * stored_columns(w) + column),
        scale_row_(fp8_scale_row(w, output)),
        place_(w.first_column + column) {}

  inline Pair next(int64_t k) {
    if (k == 0 || (place_ + k) % quant::fp8_block == 0) {
      const float factor = fp8_scale(w_, scale_row_ + (place_ + k) / quant::fp8_block) * 256;
      odd_ |= !(factor <= 0x1p127f && factor >= -0x1p127f);
      factor_ = set1(factor);
    }
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(codes_ + k));
    largest_ = _mm256_max_epu8(largest_, _mm256_and_si256(codes, _mm256_set1_epi8(0x7f)));
    // seeeemmm as the fp16 number s0eeeemmm·2^7: 1/256 of it, subnormals too, for fp16 has 8 more for its bias.
    const auto half = [](__m256i shifted) {
      return _mm256_and_si256(_mm256_srai_epi16(shifted, 1), _mm256_set1_epi16(static_cast<int16_t>(0xBFFF)));
    };
    const __m256i none = _mm256_setzero_si256();
    const __m256i low = half(_mm256_unpacklo_epi8(none, codes)), high = half(_mm256_unpackhi_epi8(none, codes));
    return {mul(from_f16(_mm256_unpacklo_epi64(low, high)), factor_),
            mul(from_f16(_mm256_unpackhi_epi64(low, high)), factor_)};
  }

  // False if a code was NaN or a scale too large to be multiplied by 256: what was read is wrong.
  bool sound() const {
    const __m256i nan = _mm256_cmpeq_epi8(largest_, _mm256_set1_epi8(0x7f));
    return !odd_ && _mm256_testz_si256(nan, nan) != 0;
  }

  static constexpr int64_t bytes(int64_t columns) { return columns; }
  const std::byte* codes() const { return codes_; }

 private:
  const Matrix& w_;
  const std::byte* codes_;
  int64_t scale_row_, place_;
  Vec factor_ = zero();
  __m256i largest_ = _mm256_setzero_si256();
  bool odd_ = false;
};

// The same of an NVFP4 matrix.
struct Nvfp4Steps {
  static bool can_read(const Matrix&, int64_t) { return true; }

  Nvfp4Steps(const Matrix& w, int64_t output, int64_t column)
      : codes_(w.data + (output * stored_columns(w) + column) / 2),
        scales_(w.block_scales + (output * stored_columns(w) + column) / quant::nvfp4_group),
        outer_(set1(w.outer_scale)),
        high_first_(w.high_nibble_first) {}

  inline Pair next(int64_t k) {
    const float scale0 = fp8_e4m3_values[static_cast<uint8_t>(scales_[k / quant::nvfp4_group])];
    const float scale1 = fp8_e4m3_values[static_cast<uint8_t>(scales_[k / quant::nvfp4_group + 1])];
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(codes_ + k / 2));
#if defined(TANDEM_SIMD_AVX512)
    const __m512 scale = _mm512_mask_broadcastss_ps(_mm512_set1_ps(scale0), 0xFF00, _mm_set_ss(scale1));
    // Each byte twice, as the word of its even and that of its odd column; the odd one is shifted.
    const __m512i place = _mm512_add_epi32(
        _mm512_set_epi32(0x0303'0303, 0x0202'0202, 0x0101'0101, 0, 0x0303'0303, 0x0202'0202, 0x0101'0101, 0,
                         0x0303'0303, 0x0202'0202, 0x0101'0101, 0, 0x0303'0303, 0x0202'0202, 0x0101'0101, 0),
        _mm512_set_epi32(0x0C0C'0C0C, 0x0C0C'0C0C, 0x0C0C'0C0C, 0x0C0C'0C0C, 0x0808'0808, 0x0808'0808, 0x0808'0808,
                         0x0808'0808, 0x0404'0404, 0x0404'0404, 0x0404'0404, 0x0404'0404, 0, 0, 0, 0));
    const __m512i shifts = _mm512_set1_epi32(high_first_ ? 0x0000'0004 : 0x0004'0000);
    const __m512i nibbles = _mm512_srlv_epi16(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), place), shifts);
    // The two bytes of a magnitude's upper half as fp32: the low one at 0 to 7 of the table, the high one at 8 to 15.
    // 0xEA: (a & b) | c.
    const __m512i index =
        _mm512_ternarylogic_epi32(nibbles, _mm512_set1_epi16(0x0707), _mm512_set1_epi16(0x0800), 0xEA);
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40));
    const __m512i halves =
        _mm512_ternarylogic_epi32(_mm512_slli_epi16(nibbles, 4), _mm512_set1_epi16(static_cast<int16_t>(0x8000)),
                                  _mm512_shuffle_epi8(table, index), 0xEA);
    const __m512i none = _mm512_setzero_si512();
    const auto value = [&](__m512i bits) { return mul({_mm512_mul_ps(_mm512_castsi512_ps(bits), scale)}, outer_); };
    return {value(_mm512_unpacklo_epi16(none, halves)), value(_mm512_unpackhi_epi16(none, halves))};
#else
    const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    const __m128i even = high_first_ ? high : low, odd = high_first_ ? low : high;
    const __m256i nibbles = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
    // The upper bytes of fp16 numbers, whose lower ones are zero.
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0x38, 0x3C, 0x3E, 0x40, 0x42, 0x44, 0x46, -128, -72, -68, -66, -64, -62, -60, -58));
    const __m256i values = _mm256_shuffle_epi8(table, nibbles), none = _mm256_setzero_si256();
    const __m256i lower = _mm256_unpacklo_epi8(none, values), upper = _mm256_unpackhi_epi8(none, values);
    const __m256 scales0 = _mm256_set1_ps(scale0), scales1 = _mm256_set1_ps(scale1);
    const auto value = [&](__m256i halves) {
      const Vec v = from_f16(halves);  // columns of the first scale, then of the second
      return mul({_mm256_mul_ps(v.lo, scales0), _mm256_mul_ps(v.hi, scales1)}, outer_);
    };
    return {value(_mm256_unpacklo_epi64(lower, upper)), value(_mm256_unpackhi_epi64(lower, upper))};
#endif
  }

  bool sound() const { return true; }
  static constexpr int64_t bytes(int64_t columns) { return columns / 2; }
  const std::byte* codes() const { return codes_; }

 private:
  const std::byte *codes_, *scales_;
  Vec outer_;
  bool high_first_;
};

// Columns [column, column + n) of one output as a panel: whole steps in the order of Pair, zeros at its end.
template <typename Steps>
static inline bool coded_panel(const Matrix& w, int64_t output, int64_t column, int64_t n, float* panel) {
  if (!Steps::can_read(w, column)) return false;
  Steps steps(w, output, column);
  int64_t k = 0;
  for (; k + group <= n; k += group) {
    __builtin_prefetch(steps.codes() + Steps::bytes(k) + prefetch_bytes);
    const Pair pair = steps.next(k);
    store(panel + k, pair.first);
    store(panel + k + 16, pair.second);
  }
  if (k < n) {
    const Pair pair = coded_pair(w, output, column + k, n - k);
    store(panel + k, pair.first);
    store(panel + k + 16, pair.second);
  }
  return steps.sound();
}

// sums[o] = Σ_k w[output + o][column + k]·x[k], k < n, of one slice, straight from the registers that the weights were
// decoded into; false if they must go through the tables.
template <typename Steps>
static inline bool coded_sums(const Matrix& w, int64_t output, int64_t column, const float* x, int64_t n, float* sums) {
  if (!Steps::can_read(w, column)) return false;
  Steps steps[4] = {{w, output, column}, {w, output + 1, column}, {w, output + 2, column}, {w, output + 3, column}};
  const int64_t row_bytes = Steps::bytes(stored_columns(w));
  const int64_t ahead = (prefetch_bytes + 4 * row_bytes - 1) / (4 * row_bytes) * (4 * row_bytes);
  Vec acc[4] = {zero(), zero(), zero(), zero()};
  int64_t k = 0;
  for (; k + group <= n; k += group) {
    const Pair value = float_pair(x + k);
    for (int o = 0; o < 4; ++o) {
      __builtin_prefetch(steps[o].codes() + Steps::bytes(k) + ahead);
      const Pair weight = steps[o].next(k);
      acc[o] = fma(weight.second, value.second, fma(weight.first, value.first, acc[o]));
    }
  }
  if (k < n) {
    float rest[group] = {};
    std::memcpy(rest, x + k, static_cast<size_t>(n - k) * sizeof(float));
    const Pair value = float_pair(rest);
    for (int o = 0; o < 4; ++o) {
      const Pair weight = coded_pair(w, output + o, column + k, n - k);
      acc[o] = fma(weight.second, value.second, fma(weight.first, value.first, acc[o]));
    }
  }
  reduce4(acc[0], acc[1], acc[2], acc[3], sums);
  return steps[0].sound() && steps[1].sound() && steps[2].sound() && steps[3].sound();
}

#endif

// The same for any coded matrix, by vectors where they can.
static inline void fill_coded_panel(const Matrix& w, int64_t output, int64_t column, int64_t n, float* panel) {
#if defined(TANDEM_SIMD_AVX512) || defined(TANDEM_SIMD_AVX2)
  const bool filled = w.format == WeightFormat::fp8_block ? coded_panel<Fp8Steps>(w, output, column, n, panel)
                                                          : coded_panel<Nvfp4Steps>(w, output, column, n, panel);
  if (filled) return;
#endif
  for (int64_t k = 0; k < n; k += group) {
    const Pair pair = coded_pair(w, output, column + k, n - k < group ? n - k : group);
    store(panel + k, pair.first);
    store(panel + k + 16, pair.second);
  }
}

static inline bool coded_sums_of_four([[maybe_unused]] const Matrix& w, [[maybe_unused]] int64_t output,
                                      [[maybe_unused]] int64_t column, [[maybe_unused]] const float* x,
                                      [[maybe_unused]] int64_t n, [[maybe_unused]] float* sums) {
#if defined(TANDEM_SIMD_AVX512) || defined(TANDEM_SIMD_AVX2)
  return w.format == WeightFormat::fp8_block ? coded_sums<Fp8Steps>(w, output, column, x, n, sums)
                                             : coded_sums<Nvfp4Steps>(w, output, column, x, n, sums);
#else
  return false;
#endif
}

}  // namespace tandem::ops::TANDEM_SIMD_LEVEL
