// EXL3 tiles to fp32 weights (kernels.h, Exl3Tiles; spec/quantization.md 1.4–1.7). Part of kernels_<level>.cc.
//
// A lane of a tile is eight weights in packed order; 8·bits bits, so lanes begin at whole bytes of the ring. Weights
// 0–3 of lane l lie in output l / 4, weights 4–7 in output l / 4 + 8, both at inputs 4·(l mod 4) … of the panel's
// order. So four lanes, 4·bits bytes from byte 4·bits·n on, hold all 16 inputs of outputs n and n + 8: a piece.
#pragma once

#include "ops/simd/kernels.h"
#include "ops/simd/vec16.h"
#include "quant/exl3_tile.h"

namespace tandem::ops::TANDEM_SIMD_LEVEL {

constexpr int exl3_pieces = 8;  // of a tile

// Up to how many rows decoding their weights again for every block of exl3_row_block, whose sums of two outputs fit
// into the registers, is quicker than a panel, which does not stay in the first cache.
#if defined(TANDEM_SIMD_AVX512)
constexpr int64_t exl3_most_rows = 8, exl3_row_block = 8;
#elif defined(TANDEM_SIMD_AVX2)
constexpr int64_t exl3_most_rows = 8, exl3_row_block = 2;
#else
constexpr int64_t exl3_most_rows = 2, exl3_row_block = 2;
#endif

// See exl3_value.
constexpr int exl3_kept = static_cast<int>(0x81FFE000u), exl3_flipped = 0x3E000000 ^ (0x0B60 << 13);
constexpr float exl3_mul1_offset = -56771.453125f;  // −(2^23 − 1024)·0.00676727294921875 − 10.3828125

#if defined(TANDEM_SIMD_AVX2) || defined(TANDEM_SIMD_AVX512)

// Where the states of a piece lie in the bits + 1 words of 32 bits that end with it. State j of a lane is the 16 bits
// from bit (j + 1)·bits on of what begins two bytes before the lane; bytes of a word are in the order of the ring from
// its last to its first. Words are brought to the 128 bits of their lane, a byte shuffle makes three bytes a number, a
// shift and a mask leave the state.
#if defined(TANDEM_SIMD_AVX512)
struct Exl3Windows {
  int bits;
  __mmask16 loaded;  // words that belong to a piece
  __m512i words, bytes[2], shifts[2];
};
#else
struct Exl3Windows {
  int bits;
  struct {
    int first;  // word of the piece that the two lanes begin with
    __m256i loaded, words, bytes[2], shifts[2];
  } pair[2];  // lanes 0 and 1, lanes 2 and 3
};
#endif

// Writes what `lanes` lanes from lane `lane` of a piece on need, words counted from `first_word`.
static inline void exl3_window(int bits, int lane, int lanes, int first_word, uint32_t* words, uint8_t (*bytes)[64],
                               uint32_t (*shifts)[16]) {
  for (int i = 0; i < lanes; ++i) {
    const int begin = (lane + i) * bits + 2;  // byte of the ring, counted from the piece's first word
    for (int w = 0; w < 4; ++w) words[4 * i + w] = static_cast<uint32_t>(begin / 4 + w - first_word);
    for (int state = 0; state < 8; ++state) {
      const int half = state / 4, place = 4 * i + state % 4, bit = (state + 1) * bits;
      for (int b = 0; b < 4; ++b) {
        const int byte = begin + bit / 8 + 2 - b;  // b counts from the least significant of three
        bytes[half][4 * place + b] = static_cast<uint8_t>(b == 3 ? 0x80 : (byte / 4 - begin / 4) * 4 + 3 - byte % 4);
      }
      shifts[half][place] = static_cast<uint32_t>(8 - bit % 8);
    }
  }
}

static inline Exl3Windows exl3_windows(int bits) {
  Exl3Windows windows;
  windows.bits = bits;
  alignas(64) uint32_t words[16];
  alignas(64) uint8_t bytes[2][64];
  alignas(64) uint32_t shifts[2][16];
#if defined(TANDEM_SIMD_AVX512)
  exl3_window(bits, 0, 4, 0, words, bytes, shifts);
  windows.loaded = static_cast<__mmask16>((1u << (bits + 1)) - 1u);
  windows.words = _mm512_load_si512(words);
  for (int half = 0; half < 2; ++half) {
    windows.bytes[half] = _mm512_load_si512(bytes[half]);
    windows.shifts[half] = _mm512_load_si512(shifts[half]);
  }
#else
  for (int pair = 0; pair < 2; ++pair) {
    auto& w = windows.pair[pair];
    w.first = (2 * pair * bits + 2) / 4;
    exl3_window(bits, 2 * pair, 2, w.first, words, bytes, shifts);
    w.words = _mm256_load_si256(reinterpret_cast<const __m256i*>(words));
    for (int half = 0; half < 2; ++half) {
      w.bytes[half] = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes[half]));
      w.shifts[half] = _mm256_load_si256(reinterpret_cast<const __m256i*>(shifts[half]));
    }
    // Words of the piece, of which there are bits + 1; word 0 of the first piece is the tile's last (exl3_states).
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    w.loaded = _mm256_cmpgt_epi32(_mm256_set1_epi32(bits + 1 - w.first), index);
  }
#endif
  return windows;
}

#if defined(TANDEM_SIMD_AVX512)

// fp32 sums and products rounded to the 11 bits of an fp16, ties to even: x·(2^13 + 1) rounded to 24 bits is x·2^13 and
// x in units of 2^13 units of x (x·2^13 is an even number of them where x lies between two fp16 numbers). The tests
// compare all 65,536 states of every codebook.
static inline Vec exl3_round(__m512 x) {
  const __m512 sum = _mm512_mul_ps(x, _mm512_set1_ps(8193.0f));
  return {_mm512_fnmadd_ps(x, _mm512_set1_ps(8192.0f), sum)};
}

template <quant::Exl3Codebook codebook>
static inline Vec exl3_value(__m512i state) {
  if constexpr (codebook == quant::Exl3Codebook::mul1) {
    const __m512i x = _mm512_mullo_epi32(state, _mm512_set1_epi32(static_cast<int>(quant::mul1_multiplier)));
    const __m512i pairs = _mm512_maddubs_epi16(x, _mm512_set1_epi8(1));
    const __m512i sum = _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
    // 2^23 + sum as fp32, and one fma: (sum + 1024)·0.00676727294921875 − 10.3828125, exact before it is rounded.
    const __m512 value = _mm512_castsi512_ps(_mm512_or_si512(sum, _mm512_set1_epi32(0x4B000000)));
    return exl3_round(_mm512_fmadd_ps(value, _mm512_set1_ps(0.00676727294921875f), _mm512_set1_ps(exl3_mul1_offset)));
  } else {
    __m512i x;
    if constexpr (codebook == quant::Exl3Codebook::mcg) {
      x = _mm512_mullo_epi32(state, _mm512_set1_epi32(static_cast<int>(quant::mcg_multiplier)));
    } else {
      x = _mm512_add_epi32(_mm512_mullo_epi32(state, _mm512_set1_epi32(89226354)), _mm512_set1_epi32(64248484));
    }
    // Each half, an fp16 from 2^-3 to 2, as fp32: (half · 2^16 >> 3, sign kept) has its sign, two free exponent bits
    // and mantissa in place; what is flipped holds the other exponent bits. 0x6A: (a & b) ^ c.
    const __m512i kept = _mm512_set1_epi32(exl3_kept), flipped = _mm512_set1_epi32(exl3_flipped);
    const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(x, 16), 3), high = _mm512_srai_epi32(x, 3);
    return exl3_round(_mm512_add_ps(_mm512_castsi512_ps(_mm512_ternarylogic_epi32(low, kept, flipped, 0x6A)),
                                    _mm512_castsi512_ps(_mm512_ternarylogic_epi32(high, kept, flipped, 0x6A))));
  }
}

// Weights of outputs n and n + 8.
template <quant::Exl3Codebook codebook>
static inline void exl3_piece(const std::byte* tile, int n, const Exl3Windows& windows, Vec& low, Vec& high) {
  const std::byte* first = tile + 4 * (n * windows.bits - 1);
  __m512i words;
  if (n == 0) {
    words = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(windows.loaded & ~1u), first);
    int last;
    std::memcpy(&last, tile + 32 * windows.bits - 4, 4);
    words = _mm512_mask_set1_epi32(words, 1, last);
  } else {
    words = _mm512_maskz_loadu_epi32(windows.loaded, first);
  }
  words = _mm512_permutexvar_epi32(windows.words, words);
  const auto states = [&](int half) {
    const __m512i window = _mm512_shuffle_epi8(words, windows.bytes[half]);
    return _mm512_and_si512(_mm512_srlv_epi32(window, windows.shifts[half]), _mm512_set1_epi32(0xFFFF));
  };
  low = exl3_value<codebook>(states(0));
  high = exl3_value<codebook>(states(1));
}

#else

static inline __m256 exl3_round(__m256 x) {  // as above
  const __m256 sum = _mm256_mul_ps(x, _mm256_set1_ps(8193.0f));
  return _mm256_fnmadd_ps(x, _mm256_set1_ps(8192.0f), sum);
}

template <quant::Exl3Codebook codebook>
static inline __m256 exl3_value(__m256i state) {
  if constexpr (codebook == quant::Exl3Codebook::mul1) {
    const __m256i x = _mm256_mullo_epi32(state, _mm256_set1_epi32(static_cast<int>(quant::mul1_multiplier)));
    const __m256i pairs = _mm256_maddubs_epi16(x, _mm256_set1_epi8(1));
    const __m256i sum = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const __m256 value = _mm256_castsi256_ps(_mm256_or_si256(sum, _mm256_set1_epi32(0x4B000000)));
    return exl3_round(_mm256_fmadd_ps(value, _mm256_set1_ps(0.00676727294921875f), _mm256_set1_ps(exl3_mul1_offset)));
  } else {
    __m256i x;
    if constexpr (codebook == quant::Exl3Codebook::mcg) {
      x = _mm256_mullo_epi32(state, _mm256_set1_epi32(static_cast<int>(quant::mcg_multiplier)));
    } else {
      x = _mm256_add_epi32(_mm256_mullo_epi32(state, _mm256_set1_epi32(89226354)), _mm256_set1_epi32(64248484));
    }
    const __m256i kept = _mm256_set1_epi32(exl3_kept), flipped = _mm256_set1_epi32(exl3_flipped);
    const __m256i low = _mm256_and_si256(_mm256_srai_epi32(_mm256_slli_epi32(x, 16), 3), kept);
    const __m256i high = _mm256_and_si256(_mm256_srai_epi32(x, 3), kept);
    return exl3_round(_mm256_add_ps(_mm256_castsi256_ps(_mm256_xor_si256(low, flipped)),
                                    _mm256_castsi256_ps(_mm256_xor_si256(high, flipped))));
  }
}

template <quant::Exl3Codebook codebook>
static inline void exl3_piece(const std::byte* tile, int n, const Exl3Windows& windows, Vec& low, Vec& high) {
  for (int pair = 0; pair < 2; ++pair) {
    const auto& w = windows.pair[pair];
    const std::byte* first = tile + 4 * (n * windows.bits - 1 + w.first);
    __m256i loaded = w.loaded;
    const bool wraps = n == 0 && pair == 0;  // word 0 is the tile's last
    if (wraps) loaded = _mm256_insert_epi32(loaded, 0, 0);
    __m256i words = _mm256_maskload_epi32(reinterpret_cast<const int*>(first), loaded);
    if (wraps) {
      int last;
      std::memcpy(&last, tile + 32 * windows.bits - 4, 4);
      words = _mm256_insert_epi32(words, last, 0);
    }
    words = _mm256_permutevar8x32_epi32(words, w.words);
    const auto states = [&](int half) {
      const __m256i window = _mm256_shuffle_epi8(words, w.bytes[half]);
      return _mm256_and_si256(_mm256_srlv_epi32(window, w.shifts[half]), _mm256_set1_epi32(0xFFFF));
    };
    (pair == 0 ? low.lo : low.hi) = exl3_value<codebook>(states(0));
    (pair == 0 ? high.lo : high.hi) = exl3_value<codebook>(states(1));
  }
}

#endif

template <quant::Exl3Codebook codebook>
static inline void exl3_decode(const Exl3Tiles& t, float* panel, int64_t stride) {
  const Exl3Windows windows = exl3_windows(t.bits);
  for (int64_t i = 0; i < t.count; ++i) {
    float* out = panel + 16 * i;
    for (int n = 0; n < exl3_pieces; ++n, out += stride) {
      Vec low, high;
      exl3_piece<codebook>(t.tiles + i * t.step, n, windows, low, high);
      store(out, low);
      store(out + exl3_pieces * stride, high);
    }
  }
}

// Sums of `rows` rows, two outputs at a time straight from the registers that they were decoded into.
template <quant::Exl3Codebook codebook, int rows>
static inline void exl3_add_up(const Exl3Sums& s) {
  const Exl3Windows windows = exl3_windows(s.tiles.bits);
  const int64_t tile_bytes = 32 * s.tiles.bits;
  for (int n = 0; n < exl3_pieces; ++n) {
    Vec acc[2][rows];
    for (int r = 0; r < rows; ++r) acc[0][r] = acc[1][r] = zero();
    const std::byte* tile = s.tiles.tiles;
    for (int64_t i = 0; i < s.tiles.count; ++i, tile += s.tiles.step) {
      // The next 16 outputs' tile follows this one; tiles of the next inputs are too far apart for the hardware.
      __builtin_prefetch(tile + tile_bytes + 4 * n * s.tiles.bits);
      Vec low, high;
      exl3_piece<codebook>(tile, n, windows, low, high);
      for (int r = 0; r < rows; ++r) {
        const Vec value = load(s.x + r * s.x_stride + 16 * i);
        acc[0][r] = fma(low, value, acc[0][r]);
        acc[1][r] = fma(high, value, acc[1][r]);
      }
    }
    for (int r = 0; r < rows; ++r) {
      float sums[4];
      reduce4(acc[0][r], acc[1][r], acc[0][r], acc[1][r], sums);
      s.sums[r * 16 + n] = sums[0];
      s.sums[r * 16 + n + exl3_pieces] = sums[1];
    }
  }
}

template <quant::Exl3Codebook codebook>
static inline void exl3_add_up_block(const Exl3Sums& s) {
  static_assert(exl3_row_block == 8 || exl3_row_block == 2);
  switch (s.rows) {
    case 1: return exl3_add_up<codebook, 1>(s);
    case 2: return exl3_add_up<codebook, 2>(s);
#if defined(TANDEM_SIMD_AVX512)
    case 3: return exl3_add_up<codebook, 3>(s);
    case 4: return exl3_add_up<codebook, 4>(s);
    case 5: return exl3_add_up<codebook, 5>(s);
    case 6: return exl3_add_up<codebook, 6>(s);
    case 7: return exl3_add_up<codebook, 7>(s);
    default: return exl3_add_up<codebook, 8>(s);
#endif
  }
}

template <quant::Exl3Codebook codebook>
static inline void exl3_add_up_rows(const Exl3Sums& s) {
  Exl3Sums block = s;
  for (int64_t r = 0; r < s.rows; r += exl3_row_block) {
    block.x = s.x + r * s.x_stride;
    block.rows = s.rows - r < exl3_row_block ? s.rows - r : exl3_row_block;
    block.sums = s.sums + 16 * r;
    exl3_add_up_block<codebook>(block);
  }
}

static void decode_exl3(const Exl3Tiles& t, float* panel, int64_t stride) {
  switch (t.codebook) {
    case quant::Exl3Codebook::three_inst: return exl3_decode<quant::Exl3Codebook::three_inst>(t, panel, stride);
    case quant::Exl3Codebook::mcg: return exl3_decode<quant::Exl3Codebook::mcg>(t, panel, stride);
    case quant::Exl3Codebook::mul1: return exl3_decode<quant::Exl3Codebook::mul1>(t, panel, stride);
  }
}

static void exl3_sums(const Exl3Sums& s) {
  switch (s.tiles.codebook) {
    case quant::Exl3Codebook::three_inst: return exl3_add_up_rows<quant::Exl3Codebook::three_inst>(s);
    case quant::Exl3Codebook::mcg: return exl3_add_up_rows<quant::Exl3Codebook::mcg>(s);
    case quant::Exl3Codebook::mul1: return exl3_add_up_rows<quant::Exl3Codebook::mul1>(s);
  }
}

#else

static void decode_exl3(const Exl3Tiles& t, float* panel, int64_t stride) {
  const float* values = quant::exl3_values(t.codebook);
  for (int64_t i = 0; i < t.count; ++i) {
    uint16_t states[quant::exl3_tile_weights];
    quant::exl3_unpack(t.tiles + i * t.step, t.bits, states);
    for (int lane = 0; lane < 32; ++lane) {
      float* out = panel + (lane >> 2) * stride + 16 * i + 4 * (lane & 3);
      for (int j = 0; j < 4; ++j) {
        out[j] = values[states[8 * lane + j]];
        out[8 * stride + j] = values[states[8 * lane + 4 + j]];
      }
    }
  }
}

static void exl3_sums(const Exl3Sums& s) {
  Vec acc[exl3_most_rows][16];
  for (int64_t r = 0; r < s.rows; ++r)
    for (Vec& a : acc[r]) a = zero();
  Exl3Tiles tile = s.tiles;
  tile.count = 1;
  for (int64_t i = 0; i < s.tiles.count; ++i, tile.tiles += tile.step) {
    float weights[16 * 16];
    decode_exl3(tile, weights, 16);
    for (int64_t r = 0; r < s.rows; ++r) {
      const Vec value = load(s.x + r * s.x_stride + 16 * i);
      for (int o = 0; o < 16; ++o) acc[r][o] = fma(load(weights + 16 * o), value, acc[r][o]);
    }
  }
  for (int64_t r = 0; r < s.rows; ++r)
    for (int o = 0; o < 16; ++o) s.sums[r * 16 + o] = reduce(acc[r][o]);
}

#endif

}  // namespace tandem::ops::TANDEM_SIMD_LEVEL
