// Unpacking of tiles. In ring order (bytes of each 32-bit word reversed) the eight states of lane l, weights 8l..8l+7,
// end at byte (l+1)·b for every width b, so one big-endian 64-bit window ending there holds the last of them and a
// second one, three bytes earlier, the rest where 16 + 7b bits exceed 64.
#include "quant/exl3_tile.h"

#include <bit>
#include <cstring>

#include "base/error.h"

namespace tandem::quant {
namespace {

static_assert(std::endian::native == std::endian::little, "packed words are little-endian");

constexpr int lanes = 32, lane_weights = 8;
constexpr int lead = 8;  // the end of the ring repeated before its start, long enough for the first window

template <int bits>
void unpack(const std::byte* tile, uint16_t* states) {
  constexpr int words = 8 * bits;
  alignas(8) unsigned char ring[lead + 32 * bits];
  for (int i = 0; i < words; ++i) {
    uint32_t word;
    std::memcpy(&word, tile + 4 * i, 4);
    word = __builtin_bswap32(word);
    std::memcpy(ring + lead + 4 * i, &word, 4);
  }
  std::memcpy(ring, ring + 32 * bits, lead);
  for (int lane = 0; lane < lanes; ++lane) {
    const auto window = [&ring, lane](int bytes_back) {
      uint64_t value;
      std::memcpy(&value, ring + (lane + 1) * bits - bytes_back, 8);  // ends at byte (lane + 1)·bits of the ring
      return __builtin_bswap64(value);
    };
    const uint64_t last = window(0);
    uint16_t* out = states + lane * lane_weights;
    if constexpr (16 + 7 * bits <= 64) {
      for (int m = 0; m < 8; ++m) out[7 - m] = static_cast<uint16_t>(last >> m * bits);
    } else {
      const uint64_t first = window(3);
      for (int m = 0; m < 4; ++m) out[7 - m] = static_cast<uint16_t>(last >> m * bits);
      for (int m = 4; m < 8; ++m) out[7 - m] = static_cast<uint16_t>(first >> (m * bits - 24));
    }
  }
}

}  // namespace

uint16_t exl3_state(const std::byte* tile, int bits, int t) {
  const int words = 8 * bits;
  const int first_bit = (t + 257) * bits - 16;  // one lap added, so that it is not negative
  const int i0 = first_bit / 32 % words, i1 = (first_bit + 15) / 32;
  uint32_t high, low;
  std::memcpy(&high, tile + 4 * i0, 4);
  std::memcpy(&low, tile + 4 * (i1 % words), 4);
  const int shift = (i1 + 1) * 32 - (first_bit + 16);
  return static_cast<uint16_t>((uint64_t{high} << 32 | low) >> shift);
}

void exl3_unpack(const std::byte* tile, int bits, uint16_t* states) {
  switch (bits) {
    case 1: return unpack<1>(tile, states);
    case 2: return unpack<2>(tile, states);
    case 3: return unpack<3>(tile, states);
    case 4: return unpack<4>(tile, states);
    case 5: return unpack<5>(tile, states);
    case 6: return unpack<6>(tile, states);
    case 7: return unpack<7>(tile, states);
    case 8: return unpack<8>(tile, states);
    default: throw Error(ErrorCode::internal, "EXL3 tile", std::to_string(bits) + " bits a weight", "1 to 8");
  }
}

void exl3_pack(const uint16_t* states, int bits, std::byte* tile) {
  uint64_t pending = 0;
  int count = 0;
  for (int t = 0; t < exl3_tile_weights; ++t) {
    pending = pending << bits | (states[t] & ((1u << bits) - 1u));
    count += bits;
    if (count < 32) continue;
    count -= 32;
    const auto word = static_cast<uint32_t>(pending >> count);
    std::memcpy(tile, &word, 4);
    tile += 4;
  }
}

void exl3_decode_rows(const std::byte* tile, int bits, const float* values, float* out, int64_t stride) {
  uint16_t states[exl3_tile_weights];
  exl3_unpack(tile, bits, states);
  for (int t = 0; t < exl3_tile_weights; ++t) out[exl3_row(t) * stride + exl3_column(t)] = values[states[t]];
}

void exl3_decode_columns(const std::byte* tile, int bits, const float* values, float* out, int64_t stride) {
  uint16_t states[exl3_tile_weights];
  exl3_unpack(tile, bits, states);
  for (int lane = 0; lane < lanes; ++lane) {
    const uint16_t* state = states + lane * lane_weights;
    float* low = out + (lane >> 2) * stride + 2 * (lane & 3);
    float* high = low + 8 * stride;
    low[0] = values[state[0]];
    low[1] = values[state[1]];
    low[8] = values[state[2]];
    low[9] = values[state[3]];
    high[0] = values[state[4]];
    high[1] = values[state[5]];
    high[8] = values[state[6]];
    high[9] = values[state[7]];
  }
}

}  // namespace tandem::quant
