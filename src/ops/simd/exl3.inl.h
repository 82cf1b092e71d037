// EXL3 tiles to fp32 panels (kernels.h, Exl3Panel; spec/quantization.md 1.4–1.7). Part of kernels_<level>.cc.
//
// A lane of a tile is eight weights in packed order; 8·bits bits, so lanes begin at whole bytes of the ring. Weights
// 0–3 of lane l lie in output l / 4, weights 4–7 in output l / 4 + 8, both at inputs 4·(l mod 4) … of the panel's
// order.
#pragma once

#include "ops/simd/kernels.h"
#include "ops/simd/vec16.h"
#include "quant/exl3_tile.h"

namespace tandem::ops::TANDEM_SIMD_LEVEL {

#if defined(TANDEM_SIMD_AVX2) || defined(TANDEM_SIMD_AVX512)

// Where the states of a lane lie in the 16 bytes that begin two bytes before it: state j is the 16 bits from bit
// (j + 1)·bits on. A byte shuffle brings the four bytes from its first one on into 32 bits, a shift drops the rest.
struct Exl3Windows {
  __m256i bytes[2], shifts[2];  // weights 0–3 and 4–7, of two lanes side by side
};
static inline Exl3Windows exl3_windows(int bits) {
  Exl3Windows windows;
  for (int half = 0; half < 2; ++half) {
    alignas(32) uint8_t bytes[32];
    alignas(32) uint32_t shifts[8];
    for (int i = 0; i < 8; ++i) {
      const int first = (4 * half + i % 4 + 1) * bits;
      for (int b = 0; b < 4; ++b) bytes[4 * i + b] = static_cast<uint8_t>(first / 8 + 3 - b);
      shifts[i] = static_cast<uint32_t>(16 - first % 8);
    }
    windows.bytes[half] = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
    windows.shifts[half] = _mm256_load_si256(reinterpret_cast<const __m256i*>(shifts));
  }
  return windows;
}

// fp32 sums and products rounded to the 11 bits of an fp16: Veltkamp's split. Exact for what EXL3 adds up; the tests
// compare all 65,536 states of every codebook.
static inline __m256 exl3_round(__m256 x) {
  const __m256 c = _mm256_mul_ps(x, _mm256_set1_ps(8193.0f));
  return _mm256_sub_ps(c, _mm256_sub_ps(c, x));
}

template <quant::Exl3Codebook codebook>
static inline __m256 exl3_value(__m256i state) {
  if constexpr (codebook == quant::Exl3Codebook::mul1) {
    const __m256i x = _mm256_mullo_epi32(state, _mm256_set1_epi32(static_cast<int>(quant::mul1_multiplier)));
    const __m256i pairs = _mm256_maddubs_epi16(x, _mm256_set1_epi8(1));
    const __m256i sum = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const __m256 value = _mm256_cvtepi32_ps(_mm256_add_epi32(sum, _mm256_set1_epi32(1024)));
    return exl3_round(
        _mm256_sub_ps(_mm256_mul_ps(value, _mm256_set1_ps(0.00676727294921875f)), _mm256_set1_ps(10.3828125f)));
  } else {
    __m256i x;
    if constexpr (codebook == quant::Exl3Codebook::mcg) {
      x = _mm256_mullo_epi32(state, _mm256_set1_epi32(static_cast<int>(quant::mcg_multiplier)));
    } else {
      x = _mm256_add_epi32(_mm256_mullo_epi32(state, _mm256_set1_epi32(89226354)), _mm256_set1_epi32(64248484));
    }
    // Each half, an fp16 from 2^-3 to 2, as fp32: its two free exponent bits and its mantissa move up by 13, the other
    // exponent bits and what is flipped are one constant.
    const __m256i kept = _mm256_set1_epi32(0x01FFE000), sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
    const __m256i flipped = _mm256_set1_epi32(0x3E000000 ^ (0x0B60 << 13));
    const __m256i low = _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi32(x, 13), kept),
                                        _mm256_and_si256(_mm256_slli_epi32(x, 16), sign));
    const __m256i high = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(x, 3), kept), _mm256_and_si256(x, sign));
    return exl3_round(_mm256_add_ps(_mm256_castsi256_ps(_mm256_xor_si256(low, flipped)),
                                    _mm256_castsi256_ps(_mm256_xor_si256(high, flipped))));
  }
}

constexpr int64_t exl3_batch = 8;       // tiles whose rings are built before the first of them is decoded
constexpr int64_t exl3_ring_lead = 16;  // the ring's end repeated before its start
constexpr int64_t exl3_ring = exl3_ring_lead + 32 * quant::exl3_max_bits + 16;

// The ring in the order of its bits: bytes of each 32-bit word reversed.
static inline void exl3_build_ring(const std::byte* tile, int bits, std::byte* ring) {
  const __m128i reversed = _mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
  __m128i last = reversed;
  for (int i = 0; i < 2 * bits; ++i) {
    last = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(tile + 16 * i)), reversed);
    _mm_storeu_si128(reinterpret_cast<__m128i_u*>(ring + exl3_ring_lead + 16 * i), last);
  }
  _mm_storeu_si128(reinterpret_cast<__m128i_u*>(ring), last);
}

template <quant::Exl3Codebook codebook>
static inline void exl3_decode_ring(const std::byte* ring, int bits, const Exl3Windows& windows, float* panel,
                                    int64_t stride) {
  const std::byte* window = ring + exl3_ring_lead - 2;
  for (int lane = 0; lane < 32; lane += 2, window += 2 * bits) {
    const __m256i two =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(window))),
                                _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(window + bits)), 1);
    float* out = panel + (lane >> 2) * stride + 4 * (lane & 3);
    for (int half = 0; half < 2; ++half) {
      const __m256i bytes = _mm256_shuffle_epi8(two, windows.bytes[half]);
      const __m256i state = _mm256_and_si256(_mm256_srlv_epi32(bytes, windows.shifts[half]), _mm256_set1_epi32(0xFFFF));
      _mm256_storeu_ps(out + 8 * half * stride, exl3_value<codebook>(state));
    }
  }
}

template <quant::Exl3Codebook codebook>
static inline void exl3_decode_tiles(const Exl3Panel& p) {
  const Exl3Windows windows = exl3_windows(p.bits);
  alignas(64) std::byte rings[exl3_batch][exl3_ring];
  for (int64_t first = 0; first < p.count; first += exl3_batch) {
    const int64_t count = p.count - first < exl3_batch ? p.count - first : exl3_batch;
    for (int64_t i = 0; i < count; ++i) exl3_build_ring(p.tiles + (first + i) * p.step, p.bits, rings[i]);
    for (int64_t i = 0; i < count; ++i)
      exl3_decode_ring<codebook>(rings[i], p.bits, windows, p.panel + 16 * (first + i), p.stride);
  }
}

static void decode_exl3(const Exl3Panel& p) {
  switch (p.codebook) {
    case quant::Exl3Codebook::three_inst: return exl3_decode_tiles<quant::Exl3Codebook::three_inst>(p);
    case quant::Exl3Codebook::mcg: return exl3_decode_tiles<quant::Exl3Codebook::mcg>(p);
    case quant::Exl3Codebook::mul1: return exl3_decode_tiles<quant::Exl3Codebook::mul1>(p);
  }
}

#else

static void decode_exl3(const Exl3Panel& p) {
  const float* values = quant::exl3_values(p.codebook);
  for (int64_t i = 0; i < p.count; ++i) {
    uint16_t states[quant::exl3_tile_weights];
    quant::exl3_unpack(p.tiles + i * p.step, p.bits, states);
    for (int lane = 0; lane < 32; ++lane) {
      float* out = p.panel + (lane >> 2) * p.stride + 16 * i + 4 * (lane & 3);
      for (int j = 0; j < 4; ++j) {
        out[j] = values[states[8 * lane + j]];
        out[8 * p.stride + j] = values[states[8 * lane + 4 + j]];
      }
    }
  }
}

#endif

}  // namespace tandem::ops::TANDEM_SIMD_LEVEL
