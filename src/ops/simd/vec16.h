// Sixteen float lanes, the unit of every CPU sum (design.md 1): the same operations, and so the same bits, as plain
// code, AVX2, AVX-512 and NEON. Included once by each kernels_<level>.cc, which defines TANDEM_SIMD_LEVEL (the
// namespace) and is compiled for that instruction set; nothing here may be inline in a shared namespace, or the linker
// could pick a version that the machine cannot run.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(TANDEM_SIMD_AVX512) || defined(TANDEM_SIMD_AVX2)
#include <immintrin.h>
#elif defined(TANDEM_SIMD_NEON)
#include <arm_neon.h>
#endif

namespace tandem::ops::TANDEM_SIMD_LEVEL {

#if defined(TANDEM_SIMD_AVX512)

struct Vec {
  __m512 v;
};
static inline Vec zero() { return {_mm512_setzero_ps()}; }
static inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
static inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline Vec load_partial(const float* p, int64_t n) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p)};
}
static inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
static inline void store_partial(float* p, Vec a, int64_t n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), a.v);
}
static inline Vec load_bf16(const std::byte* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
static inline Vec load_f16(const std::byte* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)))};
}
static inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a > b ? a : b, so that a NaN in b comes through on every level (likewise vmin).
static inline Vec vmax(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline Vec vmin(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
// 2^n for the integer n = bits(a) - bits(b), −126 ≤ n ≤ 127.
static inline Vec exponent_difference(Vec a, Vec b, int halves) {
  __m512i n = _mm512_sub_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v));
  const __m512i first = _mm512_srai_epi32(n, 1);
  n = halves == 0 ? first : _mm512_sub_epi32(n, first);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23))};
}
// The nearest bf16 value, ties to even; a NaN stays a (quiet) NaN.
static inline Vec round_bf16(Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v), high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x00400000));
  return {_mm512_castsi512_ps(_mm512_and_si512(kept, high))};
}
static inline __m256 fold8(Vec a) { return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)); }

#elif defined(TANDEM_SIMD_AVX2)

struct Vec {
  __m256 lo, hi;
};
static inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline Vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline Vec load_partial(const float* p, int64_t n) {
  float lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
}
static inline void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
static inline void store_partial(float* p, Vec a, int64_t n) {
  float lanes[16];
  store(lanes, a);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}
static inline Vec load_bf16(const std::byte* p) {
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p + 16));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16))};
}
static inline Vec load_f16(const std::byte* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p + 16)))};
}
static inline Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline Vec vmax(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline Vec vmin(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline __m256 exponent_difference(__m256 a, __m256 b, int halves) {
  __m256i n = _mm256_sub_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b));
  const __m256i first = _mm256_srai_epi32(n, 1);
  n = halves == 0 ? first : _mm256_sub_epi32(n, first);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
static inline Vec exponent_difference(Vec a, Vec b, int halves) {
  return {exponent_difference(a.lo, b.lo, halves), exponent_difference(a.hi, b.hi, halves)};
}
static inline __m256 round_bf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a), high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
  const __m256 kept = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan);
  return _mm256_and_ps(kept, _mm256_castsi256_ps(high));
}
static inline Vec round_bf16(Vec a) { return {round_bf16(a.lo), round_bf16(a.hi)}; }
static inline __m256 fold8(Vec a) { return _mm256_add_ps(a.lo, a.hi); }

#elif defined(TANDEM_SIMD_NEON)

struct Vec {
  float32x4_t q[4];
};
static inline Vec zero() { return {{vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)}}; }
static inline Vec set1(float x) { return {{vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x)}}; }
static inline Vec load(const float* p) {
  return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
static inline Vec load_partial(const float* p, int64_t n) {
  float lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
}
static inline void store(float* p, Vec a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.q[i]);
}
static inline void store_partial(float* p, Vec a, int64_t n) {
  float lanes[16];
  store(lanes, a);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}
static inline Vec load_bf16(const std::byte* p) {
  Vec out;
  for (int i = 0; i < 2; ++i) {
    const uint16x8_t bits = vreinterpretq_u16_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p) + 16 * i));
    out.q[2 * i] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16));
    out.q[2 * i + 1] = vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(bits), 16));
  }
  return out;
}
#define TANDEM_NEON_LANES(name, expression)            \
  static inline Vec name(Vec a, Vec b) {               \
    Vec out;                                           \
    for (int i = 0; i < 4; ++i) out.q[i] = expression; \
    return out;                                        \
  }
TANDEM_NEON_LANES(add, vaddq_f32(a.q[i], b.q[i]))
TANDEM_NEON_LANES(sub, vsubq_f32(a.q[i], b.q[i]))
TANDEM_NEON_LANES(mul, vmulq_f32(a.q[i], b.q[i]))
TANDEM_NEON_LANES(div, vdivq_f32(a.q[i], b.q[i]))
TANDEM_NEON_LANES(vmax, vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]))
TANDEM_NEON_LANES(vmin, vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]))
#undef TANDEM_NEON_LANES
static inline Vec fma(Vec a, Vec b, Vec c) {
  Vec out;
  for (int i = 0; i < 4; ++i) out.q[i] = vfmaq_f32(c.q[i], a.q[i], b.q[i]);
  return out;
}
static inline Vec exponent_difference(Vec a, Vec b, int halves) {
  Vec out;
  for (int i = 0; i < 4; ++i) {
    int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(a.q[i]), vreinterpretq_s32_f32(b.q[i]));
    const int32x4_t first = vshrq_n_s32(n, 1);
    n = halves == 0 ? first : vsubq_s32(n, first);
    out.q[i] = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
  }
  return out;
}
static inline Vec round_bf16(Vec a) {
  Vec out;
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a.q[i]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
    const uint32x4_t kept = vbslq_u32(vceqq_f32(a.q[i], a.q[i]), up, quiet);
    out.q[i] = vreinterpretq_f32_u32(vandq_u32(kept, vdupq_n_u32(0xffff0000u)));
  }
  return out;
}

#else  // plain code

struct Vec {
  float v[16];
};
#define TANDEM_PLAIN_LANES(name, parameters, expression) \
  static inline Vec name parameters {                    \
    Vec out;                                             \
    for (int i = 0; i < 16; ++i) out.v[i] = expression;  \
    return out;                                          \
  }
TANDEM_PLAIN_LANES(zero, (), 0.0f)
TANDEM_PLAIN_LANES(set1, (float x), x)
TANDEM_PLAIN_LANES(load, (const float* p), p[i])
TANDEM_PLAIN_LANES(load_partial, (const float* p, int64_t n), i < n ? p[i] : 0.0f)
TANDEM_PLAIN_LANES(add, (Vec a, Vec b), a.v[i] + b.v[i])
TANDEM_PLAIN_LANES(sub, (Vec a, Vec b), a.v[i] - b.v[i])
TANDEM_PLAIN_LANES(mul, (Vec a, Vec b), a.v[i] * b.v[i])
TANDEM_PLAIN_LANES(div, (Vec a, Vec b), a.v[i] / b.v[i])
TANDEM_PLAIN_LANES(fma, (Vec a, Vec b, Vec c), std::fma(a.v[i], b.v[i], c.v[i]))
TANDEM_PLAIN_LANES(vmax, (Vec a, Vec b), a.v[i] > b.v[i] ? a.v[i] : b.v[i])
TANDEM_PLAIN_LANES(vmin, (Vec a, Vec b), a.v[i] < b.v[i] ? a.v[i] : b.v[i])
#undef TANDEM_PLAIN_LANES
static inline void store(float* p, Vec a) { std::memcpy(p, a.v, sizeof a.v); }
static inline void store_partial(float* p, Vec a, int64_t n) {
  std::memcpy(p, a.v, static_cast<size_t>(n) * sizeof(float));
}
static inline Vec load_bf16(const std::byte* p) {
  Vec out;
  for (int i = 0; i < 16; ++i) {
    uint16_t half;
    std::memcpy(&half, p + 2 * i, 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    std::memcpy(&out.v[i], &bits, 4);
  }
  return out;
}
static inline Vec exponent_difference(Vec a, Vec b, int halves) {
  Vec out;
  for (int i = 0; i < 16; ++i) {
    int32_t x, y;
    std::memcpy(&x, &a.v[i], 4);
    std::memcpy(&y, &b.v[i], 4);
    int32_t n = static_cast<int32_t>(static_cast<uint32_t>(x) - static_cast<uint32_t>(y));
    n = halves == 0 ? n >> 1 : n - (n >> 1);
    const uint32_t bits = static_cast<uint32_t>(n + 127) << 23;
    std::memcpy(&out.v[i], &bits, 4);
  }
  return out;
}
static inline Vec round_bf16(Vec a) {
  Vec out;
  for (int i = 0; i < 16; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &a.v[i], 4);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    bits = (nan ? bits | 0x00400000u : bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
    std::memcpy(&out.v[i], &bits, 4);
  }
  return out;
}

#endif

#if !defined(TANDEM_SIMD_AVX512) && !defined(TANDEM_SIMD_AVX2)
static inline Vec load_f16(const std::byte* p) {  // finite numbers
  float lanes[16];
  for (int i = 0; i < 16; ++i) {
    uint16_t half;
    std::memcpy(&half, p + 2 * i, 2);
    const uint32_t magnitude_bits = static_cast<uint32_t>(half & 0x7fffu) << 13;
    float magnitude;
    std::memcpy(&magnitude, &magnitude_bits, 4);
    magnitude *= 0x1p112f;  // exact, subnormals too
    lanes[i] = (half & 0x8000u) != 0 ? -magnitude : magnitude;
  }
  return load(lanes);
}
#endif

// Thirty-two values as two vectors in the order that unpacking BF16 gives for free: the first holds values 8i … 8i+3,
// the second 8i+4 … 8i+7, for i = 0 … 3. So value j of a group of 32 belongs to lane j/8·4 + j%4.
struct Pair {
  Vec first, second;
};
#if defined(TANDEM_SIMD_AVX512)
static inline Pair bf16_pair(const std::byte* p) {
  __m512i bits = _mm512_loadu_si512(p);
  asm("" : "+v"(bits));  // one load, or the compiler folds it into both unpacks and the load ports become the limit
  const __m512i none = _mm512_setzero_si512();
  return {{_mm512_castsi512_ps(_mm512_unpacklo_epi16(none, bits))},
          {_mm512_castsi512_ps(_mm512_unpackhi_epi16(none, bits))}};
}
static inline Pair float_pair(const float* p) {
  const Vec low = load(p), high = load(p + 16);
  return {{_mm512_shuffle_f32x4(low.v, high.v, 0x88)}, {_mm512_shuffle_f32x4(low.v, high.v, 0xdd)}};
}
#elif defined(TANDEM_SIMD_AVX2)
static inline Pair bf16_pair(const std::byte* p) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p + 32));
  const __m256i none = _mm256_setzero_si256();
  return {{_mm256_castsi256_ps(_mm256_unpacklo_epi16(none, a)), _mm256_castsi256_ps(_mm256_unpacklo_epi16(none, b))},
          {_mm256_castsi256_ps(_mm256_unpackhi_epi16(none, a)), _mm256_castsi256_ps(_mm256_unpackhi_epi16(none, b))}};
}
static inline Pair float_pair(const float* p) {
  const Vec low = load(p), high = load(p + 16);
  return {{_mm256_permute2f128_ps(low.lo, low.hi, 0x20), _mm256_permute2f128_ps(high.lo, high.hi, 0x20)},
          {_mm256_permute2f128_ps(low.lo, low.hi, 0x31), _mm256_permute2f128_ps(high.lo, high.hi, 0x31)}};
}
#else
static inline Pair float_pair(const float* p) {
  float first[16], second[16];
  for (int i = 0; i < 4; ++i) {
    std::memcpy(first + 4 * i, p + 8 * i, 16);
    std::memcpy(second + 4 * i, p + 8 * i + 4, 16);
  }
  return {load(first), load(second)};
}
static inline Pair bf16_pair(const std::byte* p) {
  float values[32];
  store(values, load_bf16(p));
  store(values + 16, load_bf16(p + 32));
  return float_pair(values);
}
#endif

// Sixteen stored fp32 numbers, which may be unaligned.
static inline Vec load_floats(const std::byte* p) {
#if defined(TANDEM_SIMD_AVX2)  // GCC copies a struct of two registers in pieces that the loads then wait for
  return {_mm256_loadu_ps(reinterpret_cast<const float*>(p)), _mm256_loadu_ps(reinterpret_cast<const float*>(p + 32))};
#else
  Vec out;
  std::memcpy(&out, p, sizeof out);
  return out;
#endif
}

// The lanes that one register holds, for tiles of sums: where a Vec is two registers, a tile goes over its columns once
// for each, so that twice as many sums stay in registers. Every lane is a chain of its own, so this moves no bit.
// bf16_part() and float_part(): the part's lanes of first (half 0) or second (half 1) of the pair.
#if defined(TANDEM_SIMD_AVX2)
constexpr int parts = 2;
constexpr int64_t part_lanes = 8;
struct Part {
  __m256 v;
};
static inline Part part_zero() { return {_mm256_setzero_ps()}; }
static inline Part part_load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline Part part_load(const std::byte* p) { return {_mm256_loadu_ps(reinterpret_cast<const float*>(p))}; }
static inline Part part_fma(Part a, Part b, Part c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
static inline void set_part(Vec& a, int part, Part value) { (part == 0 ? a.lo : a.hi) = value.v; }
// In a register: left alone, GCC loads it again for every product, and the load ports become the limit.
static inline Part held(Part a) {
  asm("" : "+x"(a.v));
  return a;
}
static inline Part bf16_part(const std::byte* p, int part, int half) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p + 32 * part));
  const __m256i none = _mm256_setzero_si256();
  return {_mm256_castsi256_ps(half == 0 ? _mm256_unpacklo_epi16(none, bits) : _mm256_unpackhi_epi16(none, bits))};
}
static inline Part float_part(const float* p, int part, int half) {
  const __m256 low = _mm256_loadu_ps(p + 16 * part), high = _mm256_loadu_ps(p + 16 * part + 8);
  return {half == 0 ? _mm256_permute2f128_ps(low, high, 0x20) : _mm256_permute2f128_ps(low, high, 0x31)};
}
#else
constexpr int parts = 1;
constexpr int64_t part_lanes = 16;
using Part = Vec;
static inline Part part_zero() { return zero(); }
static inline Part part_load(const float* p) { return load(p); }
static inline Part part_load(const std::byte* p) { return load_floats(p); }
static inline Part part_fma(Part a, Part b, Part c) { return fma(a, b, c); }
static inline void set_part(Vec& a, int, Part value) { a = value; }
static inline Part held(Part a) { return a; }
static inline Part bf16_part(const std::byte* p, int, int half) {
  return half == 0 ? bf16_pair(p).first : bf16_pair(p).second;
}
static inline Part float_part(const float* p, int, int half) {
  return half == 0 ? float_pair(p).first : float_pair(p).second;
}
#endif

static inline Vec load_bf16_partial(const std::byte* p, int64_t n) {
  std::byte lanes[32] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * 2);
  return load_bf16(lanes);
}

// Sums of four vectors over the fixed tree: lane i + lane i+8, then i+4, i+2, i+1.
#if defined(TANDEM_SIMD_AVX512) || defined(TANDEM_SIMD_AVX2)
struct Fold {  // the tree's first two steps done
  __m128 v;
};
static inline Fold fold(Vec a) {
  const __m256 eight = fold8(a);
  return {_mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1))};
}
static inline void reduce4(Fold a, Fold b, Fold c, Fold d, float* out) {
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a.v, b.v), _mm_unpackhi_ps(a.v, b.v));  // a0+a2 b0+b2 a1+a3 b1+b3
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c.v, d.v), _mm_unpackhi_ps(c.v, d.v));
  _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}
static inline float reduce(Fold a) {
  float out[4];
  reduce4(a, a, a, a, out);
  return out[0];
}
static inline void reduce4(Vec a, Vec b, Vec c, Vec d, float* out) { reduce4(fold(a), fold(b), fold(c), fold(d), out); }
static inline float reduce(Vec a) { return reduce(fold(a)); }
#else
using Fold = Vec;
static inline Fold fold(Vec a) { return a; }
static inline float reduce(Vec a) {
  float lanes[16];
  store(lanes, a);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] + lanes[i + width];
  }
  return lanes[0];
}
static inline void reduce4(Vec a, Vec b, Vec c, Vec d, float* out) {
  out[0] = reduce(a);
  out[1] = reduce(b);
  out[2] = reduce(c);
  out[3] = reduce(d);
}
#endif

// e^x in fp32, below 2 units in the last place: x = n·ln 2 + r with |r| ≤ ln 2 / 2, Taylor polynomial of degree 7 in r
// (next term 5e-9), scaled by 2^n in two factors so that results below 2^-126 round once. x is clamped to [−104, 88.7].
static inline Vec exp(Vec x) {
  x = vmin(set1(88.7f), vmax(set1(-104.0f), x));
  const Vec magic = set1(12582912.0f);  // 1.5·2^23: adding it rounds to an integer in the low mantissa bits
  const Vec shifted = fma(x, set1(1.44269504f), magic);
  const Vec n = sub(shifted, magic);
  Vec r = fma(n, set1(-0.693359375f), x);  // ln 2 in two parts, the first exact in n·part
  r = fma(n, set1(2.12194440e-4f), r);
  Vec p = set1(1.0f / 5040.0f);
  p = fma(p, r, set1(1.0f / 720.0f));
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return mul(mul(p, exponent_difference(shifted, magic, 0)), exponent_difference(shifted, magic, 1));
}

static inline Vec sigmoid(Vec x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }
static inline Vec silu(Vec x) { return mul(x, sigmoid(x)); }

}  // namespace tandem::ops::TANDEM_SIMD_LEVEL
