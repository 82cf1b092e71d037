// One EXL3 tile: 256 weights in 32·b bytes, a ring of 256·b bits in which the state of weight t is the 16 bits that end
// with its own b new bits (spec/quantization.md 1.4–1.6). Any bytes are a valid tile.
//
// A tile covers 16 input features (rows) and 16 output features (columns) of W. Bytes may be unaligned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::quant {

constexpr int64_t exl3_tile = 16;  // inputs and outputs of a tile
constexpr int exl3_tile_weights = 256;
constexpr int exl3_max_bits = 8;

constexpr int64_t exl3_tile_bytes(int bits) { return 32 * bits; }

// Where weight t of the packed order lies: the B fragments of mma.m16n8k16 (1.6).
constexpr int exl3_row(int t) { return 2 * (t >> 3 & 3) + (t & 1) + 8 * (t >> 1 & 1); }
constexpr int exl3_column(int t) { return (t >> 5) + 8 * (t >> 2 & 1); }
constexpr int exl3_packed(int row, int column) {
  return 32 * (column & 7) + 8 * ((row & 7) >> 1) + 4 * (column >> 3) + 2 * (row >> 3) + (row & 1);
}

// State of weight t by the formula of 1.5; bits 1–8.
uint16_t exl3_state(const std::byte* tile, int bits, int t);

// All 256 states in packed order, eight at a time from one or two 64-bit windows; equal to exl3_state for every t.
void exl3_unpack(const std::byte* tile, int bits, uint16_t* states);

// Writes the low `bits` bits of each of the 256 states as a tile. The states of exl3_unpack come back when the sequence
// is a trellis path closed into a ring (1.4).
void exl3_pack(const uint16_t* states, int bits, std::byte* tile);

// The tile as fp32, `values` being exl3_values(codebook).
// By rows: out[row·stride + column], 16 outputs of one input side by side (W itself).
void exl3_decode_rows(const std::byte* tile, int bits, const float* values, float* out, int64_t stride);
// By columns: out[column·stride + row], 16 inputs of one output side by side: a panel for dot products over inputs, the
// layout of Hugging Face's [out, in].
void exl3_decode_columns(const std::byte* tile, int bits, const float* values, float* out, int64_t stride);

}  // namespace tandem::quant
