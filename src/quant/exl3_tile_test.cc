// Tiles against the tables and worked examples of spec/quantization.md 1.5, 1.6 and 1.13 (a).
#include "quant/exl3_tile.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "quant/exl3_codebook.h"
#include "quant/test_golden.h"

namespace tandem::quant::exl3_tile_test {
namespace {

constexpr Exl3Codebook codebooks[] = {Exl3Codebook::three_inst, Exl3Codebook::mcg, Exl3Codebook::mul1};

// clang-format off
const int tile_order[16][16] = {
    {0, 32, 64, 96, 128, 160, 192, 224, 4, 36, 68, 100, 132, 164, 196, 228},
    {1, 33, 65, 97, 129, 161, 193, 225, 5, 37, 69, 101, 133, 165, 197, 229},
    {8, 40, 72, 104, 136, 168, 200, 232, 12, 44, 76, 108, 140, 172, 204, 236},
    {9, 41, 73, 105, 137, 169, 201, 233, 13, 45, 77, 109, 141, 173, 205, 237},
    {16, 48, 80, 112, 144, 176, 208, 240, 20, 52, 84, 116, 148, 180, 212, 244},
    {17, 49, 81, 113, 145, 177, 209, 241, 21, 53, 85, 117, 149, 181, 213, 245},
    {24, 56, 88, 120, 152, 184, 216, 248, 28, 60, 92, 124, 156, 188, 220, 252},
    {25, 57, 89, 121, 153, 185, 217, 249, 29, 61, 93, 125, 157, 189, 221, 253},
    {2, 34, 66, 98, 130, 162, 194, 226, 6, 38, 70, 102, 134, 166, 198, 230},
    {3, 35, 67, 99, 131, 163, 195, 227, 7, 39, 71, 103, 135, 167, 199, 231},
    {10, 42, 74, 106, 138, 170, 202, 234, 14, 46, 78, 110, 142, 174, 206, 238},
    {11, 43, 75, 107, 139, 171, 203, 235, 15, 47, 79, 111, 143, 175, 207, 239},
    {18, 50, 82, 114, 146, 178, 210, 242, 22, 54, 86, 118, 150, 182, 214, 246},
    {19, 51, 83, 115, 147, 179, 211, 243, 23, 55, 87, 119, 151, 183, 215, 247},
    {26, 58, 90, 122, 154, 186, 218, 250, 30, 62, 94, 126, 158, 190, 222, 254},
    {27, 59, 91, 123, 155, 187, 219, 251, 31, 63, 95, 127, 159, 191, 223, 255},
};

struct Tile {
  int bits;
  uint16_t new_bits[8];
  uint16_t states[8];
  uint16_t last_state;
  uint32_t words[3];  // first, second, last
  uint64_t packed;
  uint64_t decoded[3];
};

const Tile golden_tiles[] = {
    {1,
     {1, 0, 0, 1, 1, 0, 0, 0},
     {0xC67F, 0x8CFE, 0x19FC, 0x33F9, 0x67F3, 0xCFE6, 0x9FCC, 0x3F98},
     0xE33F, {0x983FE9FD, 0xF9272250, 0xB2BAE33F}, 0x2227a23d13c5fd94,
     {0x3f1aafaeece16ab4, 0x9f4fc56aa8c12da8, 0xae0bd75c74bb7cb9}},
    {2,
     {1, 0, 0, 1, 3, 2, 2, 0},
     {0x9F75, 0x7DD4, 0xF750, 0xDD41, 0x7507, 0xD41E, 0x507A, 0x41E8},
     0x27DD, {0x41E88DF5, 0xFC4BD55B, 0x742527DD}, 0x2fa6aa70abb88b75,
     {0xb16f7478277cfe26, 0xc527205503b65913, 0x31adb6f51a3d9f76}},
    {3,
     {1, 4, 4, 1, 7, 2, 2, 0},
     {0xBBE9, 0xDF4C, 0xFA64, 0xD321, 0x990F, 0xC87A, 0x43D2, 0x1E90},
     0xB77D, {0x321E9041, 0x9ECDEF82, 0x8D0AB77D}, 0x1004ca6b88a8e3c3,
     {0x1ba907ef66170df0, 0x333bb382bf9dbfda, 0x8f6d1edc2c17fc5e}},
    {4,
     {9, 12, 12, 9, 7, 10, 2, 0},
     {0xDFD9, 0xFD9C, 0xD9CC, 0x9CC9, 0xCC97, 0xC97A, 0x97A2, 0x7A20},
     0x3DFD, {0x9CC97A20, 0xA039FB95, 0x025B3DFD}, 0x71486b93c9440ba9,
     {0x629a9a319dd4a68e, 0xb0b48c9b3cfad59e, 0xce2065aae904e4b6}},
    {5,
     {25, 28, 12, 9, 23, 10, 18, 0},
     {0xBFB9, 0xF73C, 0xE78C, 0xF189, 0x3137, 0x26EA, 0xDD52, 0xAA40},
     0xF5FD, {0xCF189BAA, 0x40D4269F, 0xABB9F5FD}, 0x3c78a7956215fec4,
     {0xfa9bd17744a4add8, 0xf3bdbd2b5109aec3, 0x3d60c1c7888e09bf}},
    {6,
     {57, 60, 12, 9, 55, 10, 50, 32},
     {0xF779, 0xDE7C, 0x9F0C, 0xC309, 0xC277, 0x9DCA, 0x72B2, 0xACA0},
     0xD3DD, {0xE7C309DC, 0xACA0690C, 0x5B4DD3DD}, 0x4ac1cc0dbc21341d,
     {0x9f70271af4a4b4b3, 0x9c2d2aeb4d779458, 0xf034b6abb7faee63}},
    {7,
     {57, 60, 12, 9, 119, 74, 114, 96},
     {0xEEB9, 0x5CBC, 0x5E0C, 0x0609, 0x04F7, 0x7BCA, 0xE572, 0xB960},
     0x67DD, {0x72F0609E, 0xF2B96034, 0xBA7767DD}, 0x3131b7ba98ae6edc,
     {0xb99f6f308473371d, 0x7d00b0b6ac1d1209, 0x5ddddb422f16b093}},
    {8,
     {57, 60, 12, 137, 247, 202, 242, 96},
     {0xDD39, 0x393C, 0x3C0C, 0x0C89, 0x89F7, 0xF7CA, 0xCAF2, 0xF260},
     0xCFDD, {0x393C0C89, 0xF7CAF260, 0x535DCFDD}, 0x4a67f84cdaca1692,
     {0x372854f817850e5c, 0x4d050e0090954452, 0x939d1af9ef16efdb}},
};
// clang-format on

// The tile of 1.13 (a).
std::vector<std::byte> golden_tile(int bits, std::vector<uint16_t>* new_bits) {
  Lcg random(12345);
  new_bits->resize(256);
  for (uint16_t& value : *new_bits) value = static_cast<uint16_t>(random.next16() & ((1u << bits) - 1u));
  std::vector<std::byte> tile(exl3_tile_bytes(bits));
  exl3_pack(new_bits->data(), bits, tile.data());
  return tile;
}

uint32_t word_of(const std::vector<std::byte>& tile, size_t index) {
  uint32_t word;
  std::memcpy(&word, tile.data() + 4 * index, 4);
  return word;
}

std::vector<uint16_t> decoded_halves(const std::vector<std::byte>& tile, int bits, Exl3Codebook codebook) {
  std::vector<uint16_t> states(256), halves(256);
  exl3_unpack(tile.data(), bits, states.data());
  for (int t = 0; t < 256; ++t) halves[16 * exl3_row(t) + exl3_column(t)] = exl3_half(codebook, states[t]);
  return halves;
}

TEST(Exl3Tile, OrderTable) {
  std::set<int> seen;
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 16; ++column) {
      const int t = exl3_packed(row, column);
      EXPECT_EQ(t, tile_order[row][column]);
      EXPECT_EQ(exl3_row(t), row);
      EXPECT_EQ(exl3_column(t), column);
      seen.insert(t);
    }
  EXPECT_EQ(seen.size(), 256u);
}

TEST(Exl3Tile, GoldenTilesOfEveryWidthAndCodebook) {
  for (const Tile& golden : golden_tiles) {
    SCOPED_TRACE(golden.bits);
    std::vector<uint16_t> new_bits, states(256);
    const std::vector<std::byte> tile = golden_tile(golden.bits, &new_bits);
    EXPECT_TRUE(std::equal(golden.new_bits, golden.new_bits + 8, new_bits.begin()));
    EXPECT_EQ(fnv1a64_of(tile), golden.packed);
    EXPECT_EQ(word_of(tile, 0), golden.words[0]);
    EXPECT_EQ(word_of(tile, 1), golden.words[1]);
    EXPECT_EQ(word_of(tile, tile.size() / 4 - 1), golden.words[2]);
    exl3_unpack(tile.data(), golden.bits, states.data());
    EXPECT_TRUE(std::equal(golden.states, golden.states + 8, states.begin()));
    EXPECT_EQ(states[255], golden.last_state);
    for (int c = 0; c < 3; ++c)
      EXPECT_EQ(fnv1a64_of(decoded_halves(tile, golden.bits, codebooks[c])), golden.decoded[c]) << c;
  }
}

TEST(Exl3Tile, DecodedByRowsAndByColumns) {
  std::vector<uint16_t> new_bits;
  const std::vector<std::byte> tile = golden_tile(4, &new_bits);
  const uint16_t first_units[] = {0x7A20, 0x9CC9, 0xFB95, 0xA039};  // as int16: halves of a word swapped
  EXPECT_EQ(std::memcmp(tile.data(), first_units, 8), 0);
  const uint16_t first_row[3][4] = {
      {0x3A1E, 0xBD1D, 0xBDA6, 0xBC02}, {0xC14C, 0xBADF, 0x3DA6, 0x399A}, {0xBDBF, 0xBD95, 0xA065, 0x3DB4}};
  const double sums[] = {24.5933838, -1.81994629, 31.3826218};
  for (int c = 0; c < 3; ++c) {
    const std::vector<uint16_t> halves = decoded_halves(tile, 4, codebooks[c]);
    EXPECT_TRUE(std::equal(first_row[c], first_row[c] + 4, halves.begin()));
    std::vector<float> rows(16 * 20), columns(16 * 40);
    exl3_decode_rows(tile.data(), 4, exl3_values(codebooks[c]), rows.data(), 20);
    exl3_decode_columns(tile.data(), 4, exl3_values(codebooks[c]), columns.data(), 40);
    double sum = 0;
    for (int row = 0; row < 16; ++row)
      for (int column = 0; column < 16; ++column) {
        const float value = exl3_values(codebooks[c])[exl3_state(tile.data(), 4, tile_order[row][column])];
        EXPECT_EQ(rows[row * 20 + column], value);
        EXPECT_EQ(columns[column * 40 + row], value);
        sum += value;
      }
    EXPECT_NEAR(sum, sums[c], 1e-6);
  }
}

TEST(Exl3Tile, WorkedExamplesOfUnpacking) {
  std::vector<std::byte> tile(exl3_tile_bytes(3));
  const uint32_t last = 0x8D0AB77D, first = 0x321E9041;
  std::memcpy(tile.data() + 4 * 23, &last, 4);
  std::memcpy(tile.data(), &first, 4);
  EXPECT_EQ(exl3_state(tile.data(), 3, 0), 0xBBE9);

  tile.assign(exl3_tile_bytes(4), std::byte{0});
  const uint32_t a = 0x025B3DFD, b = 0x9CC97A20;
  std::memcpy(tile.data() + 4 * 31, &a, 4);
  std::memcpy(tile.data(), &b, 4);
  const uint16_t expected[] = {0xDFD9, 0xFD9C, 0xD9CC, 0x9CC9, 0xCC97, 0xC97A, 0x97A2, 0x7A20};
  std::vector<uint16_t> states(256);
  exl3_unpack(tile.data(), 4, states.data());
  EXPECT_TRUE(std::equal(expected, expected + 8, states.begin()));
}

TEST(Exl3Tile, RandomBytesOfEveryWidth) {
  for (int bits = 1; bits <= 8; ++bits)
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const std::vector<std::byte> tile = random_bytes(exl3_tile_bytes(bits) + 1, seed);
      std::vector<uint16_t> states(256);
      exl3_unpack(tile.data() + 1, bits, states.data());  // unaligned
      for (int t = 0; t < 256; ++t) {
        ASSERT_EQ(states[t], exl3_state(tile.data() + 1, bits, t)) << bits << " " << t;
        // The trellis: every state is its predecessor shifted, and the circle is closed (1.4).
        const unsigned before = states[(t + 255) % 256];
        ASSERT_EQ(states[t] >> bits, (before << bits & 0xffffu) >> bits) << bits << " " << t;
      }
      std::vector<std::byte> again(exl3_tile_bytes(bits));
      exl3_pack(states.data(), bits, again.data());
      ASSERT_TRUE(std::equal(again.begin(), again.end(), tile.begin() + 1)) << bits;
    }
}

TEST(Exl3Tile, OtherWidthsAreRefused) {
  std::vector<std::byte> tile(512);
  std::vector<uint16_t> states(256);
  EXPECT_THROW(exl3_unpack(tile.data(), 0, states.data()), Error);
  EXPECT_THROW(exl3_unpack(tile.data(), 9, states.data()), Error);
}

}  // namespace
}  // namespace tandem::quant::exl3_tile_test
