// Products with FP8 weights: every code, every way to store a scale, scales and codes that vectors do not decode, views
// that begin inside a block, against the order of sums that kernels.h promises.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/linear/decode.h"
#include "ops/linear/multiply.h"
#include "ops/test_random.h"
#include "quant/fp8.h"

namespace tandem::ops::coded_fp8_test {
namespace {

using quant::Fp8ScaleFormat;
using test::Random;
using test::same_bits;

std::vector<SimdLevel> levels() {
  std::vector<SimdLevel> found;
  for (const SimdLevel level : {SimdLevel::scalar, SimdLevel::neon, SimdLevel::avx2, SimdLevel::avx512})
    if (simd_level_available(level)) found.push_back(level);
  return found;
}

// The level that the program had before, back at the end of a test.
struct KeepLevel {
  SimdLevel before = kernels().level;
  ~KeepLevel() { use_simd_level(before); }
};

TEST(CodedFp8, AllCodesOnEveryLevel) {
  const KeepLevel keep;
  std::vector<std::byte> codes(256 * 32);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i / 32);
  const std::array<float, 2> scales = {0.37f, 1e-3f};
  Matrix m;
  m.format = WeightFormat::fp8_block;
  m.data = codes.data();
  m.block_scales = reinterpret_cast<const std::byte*>(scales.data());
  m.out_features = 256;
  m.in_features = m.leaf_columns = 32;
  for (const SimdLevel level : levels()) {
    use_simd_level(level);
    std::array<float, 32> x{};
    x[7] = 1;
    std::array<float, 256> y{};
    multiply({&m, 0, 256, 0, 32, x.data(), 32, 1, y.data(), 256});
    for (size_t o = 0; o < 256; ++o)
      ASSERT_TRUE(same_bits(y[o] + 0.0f, quant::e4m3_values[o] * scales[o / 128] + 0.0f))
          << "code " << o << " level " << static_cast<int>(level);
  }
}

// One output of one row: slices at absolute positions, value j of a slice in lane j mod 32 / 8·4 + j mod 4, the tree.
float transcribed(const float* w, const float* x, int64_t n, int64_t first_column) {
  float total = 0;
  for (int64_t begin = 0; begin < n;) {
    const int64_t end = std::min(n, begin + slice_length - (first_column + begin) % slice_length);
    float lanes[16] = {};
    for (int64_t k = begin; k < end; ++k) {
      float& lane = lanes[(k - begin) % 32 / 8 * 4 + (k - begin) % 4];
      lane = std::fma(w[k], x[k], lane);
    }
    for (int width = 8; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    total = begin == 0 ? lanes[0] : total + lanes[0];
    begin = end;
  }
  return total;
}

void expect_transcription(const Matrix& m, const std::vector<float>& x, int64_t x_stride, const std::string& what) {
  const KeepLevel keep;
  const std::vector<float> w = decode(m);
  const int64_t most = 9;
  std::vector<float> expected;
  for (int64_t r = 0; r < most; ++r)
    for (int64_t o = 0; o < m.out_features; ++o)
      expected.push_back(
          transcribed(w.data() + o * m.in_features, x.data() + r * x_stride, m.in_features, m.first_column));
  for (const SimdLevel level : levels()) {
    use_simd_level(level);
    for (const int64_t rows : {int64_t{1}, int64_t{2}, most}) {
      std::vector<float> y = test::unwritten(rows * m.out_features);
      multiply({&m, 0, m.out_features, 0, m.in_features, x.data(), x_stride, rows, y.data(), m.out_features});
      ASSERT_TRUE(same_bits(y.data(), expected.data(), rows * m.out_features))
          << what << ", " << rows << " rows, level " << static_cast<int>(level);
    }
  }
}

TEST(CodedFp8, ScalesOfEveryTypeAndViewsInsideABlock) {
  Random random(1);
  for (const Fp8ScaleFormat format : {Fp8ScaleFormat::f32, Fp8ScaleFormat::bf16, Fp8ScaleFormat::f16}) {
    const auto m = test::random_matrix(random, WeightFormat::fp8_block, 139, 1500,
                                       {.block_row = 37, .misaligned = 1, .scale_format = format});
    const std::vector<float> x = random.normals(9 * 1500);
    const std::vector<float> values = decode(m.view);
    ASSERT_TRUE(same_bits(values, m.values));
    expect_transcription(m.view, x, 1500, "whole");
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{{128, 1372}, {96, 130}, {40, 1200}})
      expect_transcription(columns_of(m.view, first, count), x, 1500, "columns from " + std::to_string(first));
    expect_transcription(rows_of(m.view, 91, 6), x, 1500, "rows");
  }
}

TEST(CodedFp8, LargeSmallAndZeroScales) {
  constexpr int64_t out = 5, in = 1024;
  Random random(2);
  auto m = test::random_matrix(random, WeightFormat::fp8_block, out, in);
  const float scales[8] = {0x1p118f, 0x1p121f,  0.0f,     std::numeric_limits<float>::max(),
                           1e-45f,   0x1p-126f, 0x1p120f, 1.0f};
  std::memcpy(m.scales.data(), scales, sizeof scales);
  // Products of the largest scales are infinite; alone, each of them is not hidden behind the others.
  for (int64_t block = 0; block < 8; ++block) {
    std::vector<float> x(9 * in);
    for (int64_t r = 0; r < 9; ++r)
      for (int64_t k = 0; k < 128; ++k)
        x[static_cast<size_t>(r * in + 128 * block + k)] = random.normal(block == 4 ? 1e30f : 1e-30f);
    expect_transcription(columns_of(m.view, 128 * block, 128), {x.begin() + 128 * block, x.end()}, in,
                         "scale " + std::to_string(block));
    if (block != 3) expect_transcription(rows_of(m.view, 0, out), x, in, "whole, scale " + std::to_string(block));
  }
}

// A NaN code in one row of weights makes that output NaN and leaves its neighbours alone.
TEST(CodedFp8, NanCodesStayInTheirRow) {
  Random random(3);
  auto m = test::random_matrix(random, WeightFormat::fp8_block, 12, 320);
  m.data[5 * 320 + 77] = std::byte{0xff};
  m.data[10 * 320 + 319] = std::byte{0x7f};
  expect_transcription(m.view, random.normals(9 * 320), 320, "NaN");
  std::vector<float> y = test::unwritten(12);
  const std::vector<float> x = random.normals(320);
  multiply({&m.view, 0, 12, 0, 320, x.data(), 320, 1, y.data(), 12});
  for (size_t o = 0; o < 12; ++o) EXPECT_EQ(std::isnan(y[o]), o == 5 || o == 10) << o;
}

}  // namespace
}  // namespace tandem::ops::coded_fp8_test
