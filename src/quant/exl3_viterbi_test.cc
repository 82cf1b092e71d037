// The trellis search against the figures of spec/quantization.md 2.7 and 2.9, against a search written from the text of
// 2.7 word by word, and level against level.
#include "quant/exl3_viterbi.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "quant/exl3_viterbi_levels.h"
#include "quant/half.h"
#include "quant/test_exl3_encode.h"

namespace tandem::quant::exl3_viterbi_test {
namespace {

constexpr Exl3Codebook codebooks[] = {Exl3Codebook::three_inst, Exl3Codebook::mcg, Exl3Codebook::mul1};

struct LevelGuard {
  Exl3Level before = exl3_level();
  ~LevelGuard() { use_exl3_level(before); }
};

std::vector<Exl3Level> levels() {
  std::vector<Exl3Level> found;
  for (const Exl3Level level : {Exl3Level::scalar, Exl3Level::avx2, Exl3Level::avx512})
    if (exl3_level_available(level)) found.push_back(level);
  return found;
}

double squared_error(Exl3Codebook codebook, const std::vector<float>& weights, const std::vector<uint16_t>& states) {
  const float* values = exl3_values(codebook);
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double d = static_cast<double>(values[states[i]]) - weights[i];
    sum += d * d;
  }
  return sum;
}

double energy(const std::vector<float>& weights) {
  double sum = 0;
  for (const float w : weights) sum += static_cast<double>(w) * w;
  return sum;
}

std::vector<uint16_t> encode(Exl3Codebook codebook, int bits, const std::vector<float>& weights) {
  std::vector<uint16_t> states(weights.size());
  Exl3Viterbi(codebook, bits).encode(weights.data(), static_cast<int64_t>(weights.size()) / 256, states.data());
  return states;
}

// Section 2.7 as it is written: back pointers for every edge, no vectors, one tile.
class Reference {
 public:
  Reference(Exl3Codebook codebook, int bits) : bits_(bits), edges_(1 << (16 - bits)), values_(exl3_values(codebook)) {}

  std::vector<uint16_t> encode(const float* w) {
    forward(w, 128, -1);
    auto e = static_cast<uint32_t>(std::min_element(cost_.begin(), cost_.end()) - cost_.begin());
    for (int i = 255; i >= 128; --i) e = from_[static_cast<size_t>((i + 128) % 256)][e];
    const uint32_t start = e;
    forward(w, 0, static_cast<int>(start));
    std::vector<uint16_t> states(256);
    for (int p = 255; p >= 0; --p) {
      const uint32_t before = from_[static_cast<size_t>(p)][e];
      states[static_cast<size_t>(p)] = static_cast<uint16_t>(before << bits_ | (e & ((1u << bits_) - 1u)));
      e = before;
    }
    EXPECT_EQ(e, start);
    return states;
  }

 private:
  void forward(const float* w, int roll, int start) {
    std::vector<float> previous(edges_), next(edges_);
    for (int i = 0; i < 256; ++i) {
      const auto p = static_cast<size_t>((i + roll) % 256);
      from_[p].resize(edges_);
      for (uint32_t e = 0; e < edges_; ++e) {
        float best = std::numeric_limits<float>::infinity();
        for (uint32_t k = 0; k < 1u << bits_; ++k) {
          const uint32_t state = k << (16 - bits_) | e, in = state >> bits_;
          const float d = values_[state] - w[p];
          const bool open = start < 0 || in == static_cast<uint32_t>(start);
          const float before = i > 0 ? previous[in] : open ? 0.0f : std::numeric_limits<float>::infinity();
          const float cost = std::fma(d, d, before);
          if (cost < best) {
            best = cost;
            from_[p][e] = in;
          }
        }
        next[e] = best;
      }
      previous.swap(next);
    }
    cost_ = previous;
  }

  int bits_;
  uint32_t edges_;
  const float* values_;
  std::vector<float> cost_;
  std::array<std::vector<uint32_t>, 256> from_;
};

struct Regression {
  int bits;
  Exl3Codebook codebook;
  double scale, error;
  std::array<uint16_t, 4> states;
};
const Regression regressions[] = {
    {2, Exl3Codebook::mcg, 1.2467, 25.434945, {0x241F, 0x907E, 0x41F9, 0x07E7}},
    {3, Exl3Codebook::mcg, 1.1178, 5.479992, {0x9F1F, 0xF8FD, 0xC7EA, 0x3F54}},
    {4, Exl3Codebook::mcg, 1.1795, 1.516324, {0xAA47, 0xA47A, 0x47A0, 0x7A00}},
    {5, Exl3Codebook::mcg, 1.0943, 0.337068, {0x48FC, 0x1F8D, 0xF1B1, 0x3631}},
    {6, Exl3Codebook::mcg, 1.0943, 0.085201, {0x1BFB, 0xFEDA, 0xB688, 0xA23D}},
    {8, Exl3Codebook::mcg, 1.0471, 0.005161, {0x535F, 0x5F5B, 0x5B59, 0x59F0}},
    {4, Exl3Codebook::three_inst, 1.1324, 1.419951, {0x3AEB, 0xAEB0, 0xEB0E, 0xB0E5}},
    {4, Exl3Codebook::mul1, 0.918, 0.943091, {0x001E, 0x01E3, 0x1E3C, 0xE3C5}},
    {3, Exl3Codebook::mul1, 0.9108, 3.577302, {0x4976, 0x4BB1, 0x5D88, 0xEC44}},
};

// (u1 + u2 + u3 + u4 − 2)·√3·s, the tile of 2.9.
std::vector<float> regression_tile(double scale) {
  Lcg random(2024);
  std::vector<float> tile(256);
  for (float& w : tile) {
    double sum = -2;
    for (int draw = 0; draw < 4; ++draw) sum += (random.next() >> 8) / 16777216.0;
    w = static_cast<float>(sum * 1.7320508 * scale);
  }
  return tile;
}

TEST(Exl3Viterbi, FindsThePathsOfTheSpecificationsTile) {
  for (const Regression& r : regressions) {
    const std::vector<float> tile = regression_tile(r.scale);
    std::vector<float> rounded(tile);
    for (float& w : rounded) w = half_to_float(float_to_half(w));
    const std::vector<uint16_t> states = encode(r.codebook, r.bits, rounded);
    const double error = squared_error(r.codebook, tile, states);
    EXPECT_LE(error, 1.005 * r.error) << name_of(r.codebook) << " of " << r.bits << " bits";
    EXPECT_GE(error, 0.995 * r.error) << name_of(r.codebook) << " of " << r.bits << " bits";
    for (size_t i = 0; i < 4; ++i)
      EXPECT_EQ(states[i], r.states[i]) << name_of(r.codebook) << " of " << r.bits << " bits, state " << i;
  }
}

TEST(Exl3Viterbi, EveryTileIsARingThatPacksAndUnpacks) {
  std::vector<float> weights = gaussian_values(3 * 256, 11);  // an odd number of tiles: the last has no partner
  for (const Exl3Codebook codebook : codebooks) {
    for (int bits = 1; bits <= exl3_max_bits; ++bits) {
      const std::vector<uint16_t> states = encode(codebook, bits, weights);
      for (size_t tile = 0; tile < 3; ++tile) {
        const uint16_t* s = states.data() + tile * 256;
        for (int t = 0; t < 256; ++t) {
          const unsigned before = s[(t + 255) % 256], fresh = s[t] & ((1u << bits) - 1u);
          ASSERT_EQ(s[t], (before << bits | fresh) & 0xFFFFu) << bits << " bits, weight " << t;
        }
        std::vector<std::byte> packed(static_cast<size_t>(exl3_tile_bytes(bits)));
        std::vector<uint16_t> unpacked(256);
        exl3_pack(s, bits, packed.data());
        exl3_unpack(packed.data(), bits, unpacked.data());
        EXPECT_TRUE(std::equal(unpacked.begin(), unpacked.end(), s)) << bits << " bits";
      }
    }
  }
}

TEST(Exl3Viterbi, IsTheSearchOfTheText) {
  const std::vector<float> weights = gaussian_values(2 * 256, 12);
  for (const int bits : {1, 2, 3, 4, 5, 8}) {
    if (sanitized && bits != 1 && bits != 5) continue;
    const Exl3Codebook codebook = codebooks[bits % 3];
    const std::vector<uint16_t> states = encode(codebook, bits, weights);
    for (size_t tile = 0; tile < 2; ++tile) {
      const std::vector<uint16_t> expected = Reference(codebook, bits).encode(weights.data() + tile * 256);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), states.data() + tile * 256)) << bits << " bits";
    }
  }
}

TEST(Exl3Viterbi, AllLevelsFindTheSamePath) {
  const LevelGuard guard;
  std::vector<float> weights = gaussian_values(2 * 256, 13);
  std::fill_n(weights.begin() + 20, 150, 0.0f);                                 // many ties
  for (size_t i = 256; i < 512; ++i) weights[i] *= i % 17 == 0 ? 40.0f : 1.0f;  // beyond every codebook
  for (int bits = 1; bits <= exl3_max_bits; ++bits) {
    if (sanitized && bits != 2 && bits != 5) continue;
    use_exl3_level(Exl3Level::scalar);
    const Exl3Codebook codebook = codebooks[bits % 3];
    const std::vector<uint16_t> expected = encode(codebook, bits, weights);
    for (const Exl3Level level : levels()) {
      use_exl3_level(level);
      EXPECT_EQ(encode(codebook, bits, weights), expected) << bits << " bits, level " << static_cast<int>(level);
    }
  }
}

TEST(Exl3Viterbi, StepTablesHoldEveryStateOnce) {
  for (int bits = 1; bits <= exl3_max_bits; ++bits) {
    for (const int lanes : {8, 16}) {
      std::vector<bool> seen(exl3_states);
      for (uint32_t state = 0; state < exl3_states; ++state) {
        const int64_t place = exl3_table_place(bits, lanes, state);
        ASSERT_TRUE(place >= 0 && place < exl3_states && !seen[static_cast<size_t>(place)]) << bits << ' ' << state;
        seen[static_cast<size_t>(place)] = true;
      }
    }
  }
}

// Relative error of Gaussian weights with the g of 2.9's table.
struct Gaussian {
  double error, g;
};
constexpr Gaussian table[3][8] = {{{0.26632, 1.170},
                                   {0.06874, 0.967},
                                   {0.01774, 0.918},
                                   {0.004578, 0.911},
                                   {0.001202, 0.911},
                                   {0.000316, 0.861},
                                   {0.0000881, 0.849},
                                   {0.0000261, 0.838}},
                                  {{0.26585, 1.109},
                                   {0.06840, 1.002},
                                   {0.01741, 0.899},
                                   {0.004529, 0.948},
                                   {0.001179, 0.880},
                                   {0.000320, 0.880},
                                   {0.0000878, 0.849},
                                   {0.0000281, 0.842}},
                                  {{0.27111, 0.901},
                                   {0.06830, 0.803},
                                   {0.01743, 0.732},
                                   {0.004437, 0.738},
                                   {0.001135, 0.708},
                                   {0.000295, 0.668},
                                   {0.0000808, 0.698},
                                   {0.0000208, 0.674}}};

struct Measured {
  double closed, open;
};
Measured measure(Exl3Codebook codebook, int bits, double g, int tiles, uint32_t seed) {
  std::vector<float> weights = gaussian_values(static_cast<size_t>(tiles) * 256, seed);
  for (float& w : weights) w *= static_cast<float>(1.24371088 * g);
  std::vector<uint16_t> open(weights.size());
  Exl3Viterbi(codebook, bits).encode_open(weights.data(), tiles, open.data());
  return {squared_error(codebook, weights, encode(codebook, bits, weights)) / energy(weights),
          squared_error(codebook, weights, open) / energy(weights)};
}

// The error on Gaussian weights within `band` of the table; closing the ring never pays and costs within `points`
// percentage points of 2.7's figures (measured there with mcg).
void check_gaussian(int tiles, double band, double points, bool all) {
  constexpr double closing[] = {5.9, 4.9, 4.7, 4.0, 3.4, 3.4, 3.4, 2.2};
  for (const Exl3Codebook codebook : codebooks) {
    for (int bits = 1; bits <= exl3_max_bits; ++bits) {
      if (!all && codebook != Exl3Codebook::mcg && bits != 4) continue;
      const Gaussian& expected = table[static_cast<int>(codebook)][bits - 1];
      const Measured m = measure(codebook, bits, expected.g, tiles, 2026);
      // From 6 bits on the few weights beyond the codebook's largest value are half of the error: a sample with fewer
      // of them than the table's is better by up to a quarter (12 tiles have 3,072 weights).
      const double better = bits >= 6 ? std::max(band, 0.3) : band;
      EXPECT_LE(m.closed / expected.error, 1 + band) << name_of(codebook) << ' ' << bits << " bits";
      EXPECT_GE(m.closed / expected.error, 1 - better) << name_of(codebook) << ' ' << bits << " bits";
      EXPECT_GE(m.closed, m.open);
      if (codebook == Exl3Codebook::mcg) {
        EXPECT_NEAR(100 * (m.closed / m.open - 1), closing[bits - 1], points) << bits << " bits";
      }
    }
  }
}

// A quick look by default; TANDEM_EXL3_TILES=128 checks every codebook against the table's own tolerance.
TEST(Exl3Viterbi, GaussianErrorIsTheTable) {
  const char* tiles = std::getenv("TANDEM_EXL3_TILES");
  if (tiles == nullptr) return check_gaussian(12, 0.08, 2.5, false);
  check_gaussian(std::atoi(tiles), 0.03, 1, true);
}

TEST(Exl3Viterbi, WidthsOutsideOneToEightAreRefused) {
  EXPECT_THROW(Exl3Viterbi(Exl3Codebook::mcg, 0), Error);
  EXPECT_THROW(Exl3Viterbi(Exl3Codebook::mcg, 9), Error);
}

}  // namespace
}  // namespace tandem::quant::exl3_viterbi_test
