// Codebooks against the tables of spec/quantization.md 1.7.
#include "quant/exl3_codebook.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "quant/half.h"
#include "quant/test_golden.h"

namespace tandem::quant::exl3_codebook_test {
namespace {

constexpr Exl3Codebook codebooks[] = {Exl3Codebook::three_inst, Exl3Codebook::mcg, Exl3Codebook::mul1};

struct State {
  uint16_t state;
  uint16_t three_inst, mcg, mul1;
};

const State golden_states[] = {
    // clang-format off
    {0x0000, 0x3A25, 0x3F60, 0xC2E8},
    {0x0001, 0xBB5B, 0x304E, 0x3921},
    {0x0002, 0x3B74, 0xBA13, 0xB72D},
    {0x0003, 0x34B6, 0x3AB8, 0x3239},
    {0x0004, 0x3924, 0x3952, 0xBB29},
    {0x0005, 0x2CB0, 0xB75F, 0xB409},
    {0x0007, 0xB906, 0xBC71, 0xB997},
    {0x0008, 0x392A, 0x2FE0, 0xAC04},
    {0x000F, 0xBB6A, 0xB8FC, 0x3BBA},
    {0x0010, 0x3C44, 0xB840, 0xAFEA},
    {0x001F, 0x3252, 0xB917, 0x3AC1},
    {0x002A, 0xC030, 0x3918, 0xBA06},
    {0x0064, 0x2FC0, 0xA620, 0x2DF2},
    {0x00FF, 0x3CD1, 0xBD26, 0x3AB3},
    {0x0100, 0x3C3F, 0xBAF0, 0xB3DB},
    {0x03E8, 0x3BD8, 0xBF90, 0xBA83},
    {0x0400, 0x3B6E, 0xC178, 0xBBF9},
    {0x0FFF, 0x3BA9, 0xC076, 0x385F},
    {0x1000, 0x3560, 0xBEFF, 0xB84B},
    {0x3039, 0x3C59, 0xB682, 0xBDA3},
    {0x5555, 0xC139, 0xBCE6, 0x35B6},
    {0x7FFF, 0xBA96, 0x4172, 0x3FCA},
    {0x8000, 0xB7F8, 0xB915, 0xBAF2},
    {0x8001, 0xC05A, 0xB6EE, 0xB334},
    {0xAAAA, 0xBB35, 0xBFBA, 0x39B9},
    {0xABCD, 0xB98E, 0x35E7, 0xBD42},
    {0xCAFE, 0xC130, 0xBFAA, 0xBF81},
    {0xDEAD, 0x3FE4, 0xBB30, 0x24BC},
    {0xF00D, 0xBAE8, 0xBFE5, 0x32DF},
    {0xFFFE, 0x410A, 0xBCA2, 0x3702},
    {0xFFFF, 0xB110, 0x3ACD, 0xB936},
    // clang-format on
};

TEST(Exl3Codebook, SingleStates) {
  for (const State& golden : golden_states) {
    EXPECT_EQ(exl3_half(Exl3Codebook::three_inst, golden.state), golden.three_inst) << golden.state;
    EXPECT_EQ(exl3_half(Exl3Codebook::mcg, golden.state), golden.mcg) << golden.state;
    EXPECT_EQ(exl3_half(Exl3Codebook::mul1, golden.state), golden.mul1) << golden.state;
  }
  EXPECT_EQ(exl3_values(Exl3Codebook::three_inst)[1], -0.91943359375f);
  EXPECT_EQ(exl3_values(Exl3Codebook::mcg)[0], 1.84375f);
  EXPECT_EQ(exl3_values(Exl3Codebook::mul1)[0], -3.453125f);
}

struct Statistics {
  double mean, rms, kurtosis, min, max;
  size_t distinct;
  uint64_t hash, sum_of_patterns;
};

const Statistics golden_statistics[] = {
    {+0.00021044, 1.24371092, 2.8801, -3.957031, 3.972656, 10598, 0xfad431e7e9266898, 2031704593},
    {-0.00003693, 1.24411185, 2.8796, -3.949219, 3.949219, 10746, 0x7bb36b05a3b885a7, 2032743859},
    {-0.00193109, 1.00031207, 2.7030, -3.453125, 3.347656, 913, 0x55e1c748ed9f0cd7, 2020738480},
};

TEST(Exl3Codebook, AllStates) {
  EXPECT_EQ(fnv1a64_of(std::vector<char>{'a'}), 0xaf63dc4c8601ec8c);
  for (int c = 0; c < 3; ++c) {
    const Statistics& golden = golden_statistics[c];
    std::vector<uint16_t> patterns(exl3_states);
    uint64_t sum_of_patterns = 0;
    const float* values = exl3_values(codebooks[c]);
    double sum = 0, squares = 0, fourth = 0;
    for (int64_t state = 0; state < exl3_states; ++state) {
      patterns[state] = exl3_half(codebooks[c], static_cast<uint16_t>(state));
      sum_of_patterns += patterns[state];
      ASSERT_EQ(values[state], half_to_float(patterns[state]));
      const double value = values[state];
      sum += value, squares += value * value, fourth += value * value * value * value;
    }
    EXPECT_EQ(fnv1a64_of(patterns), golden.hash) << name_of(codebooks[c]);
    EXPECT_EQ(sum_of_patterns, golden.sum_of_patterns);
    EXPECT_EQ(std::set<float>(values, values + exl3_states).size(), golden.distinct);
    EXPECT_NEAR(*std::min_element(values, values + exl3_states), golden.min, 1e-6);
    EXPECT_NEAR(*std::max_element(values, values + exl3_states), golden.max, 1e-6);
    EXPECT_NEAR(sum / exl3_states, golden.mean, 1e-8);
    EXPECT_NEAR(std::sqrt(squares / exl3_states), golden.rms, 1e-8);
    const double mean = sum / exl3_states, variance = squares / exl3_states - mean * mean;
    EXPECT_NEAR(fourth / exl3_states / (variance * variance), golden.kurtosis, 2e-4) << name_of(codebooks[c]);
  }
}

TEST(Exl3Codebook, Names) {
  EXPECT_EQ(name_of(Exl3Codebook::three_inst), "3inst");
  EXPECT_EQ(name_of(Exl3Codebook::mcg), "mcg");
  EXPECT_EQ(name_of(Exl3Codebook::mul1), "mul1");
  EXPECT_EQ(static_cast<int32_t>(mcg_multiplier), -877912083);
  EXPECT_EQ(static_cast<int32_t>(mul1_multiplier), -2082680531);
}

}  // namespace
}  // namespace tandem::quant::exl3_codebook_test
