// Projections with NVFP4 and EXL3 weights: right, with bits that depend on nothing but the row, the same on every
// instruction set, and parts of a matrix that add up to the whole.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "device/threads.h"
#include "ops/linear/linear.h"
#include "ops/linear/multiply.h"
#include "ops/test_random.h"
#include "quant/exl3_tile.h"
#include "quant/hadamard.h"
#include "quant/half.h"

namespace tandem::ops::coded_test {
namespace {

using quant::Exl3Codebook;
using test::Random;
using test::same_bits;

constexpr Exl3Codebook codebooks[] = {Exl3Codebook::three_inst, Exl3Codebook::mcg, Exl3Codebook::mul1};

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

// Every state of every codebook: tiles whose eight-bit rings run through all 16-bit patterns.
TEST(CodedExl3, AllStatesOfAllCodebooksOnEveryLevel) {
  const KeepLevel keep;
  for (const Exl3Codebook codebook : codebooks) {
    const float* values = quant::exl3_values(codebook);
    std::vector<bool> seen(quant::exl3_states);
    for (int high = 0; high < 256; ++high) {
      // Bytes high, 0, high, 1, …: the 8-bit states are all (high, x) and (x, high).
      std::array<std::byte, 512> tiles{};
      for (int tile = 0; tile < 2; ++tile) {
        std::array<uint16_t, 256> states{};
        for (int t = 0; t < 256; ++t)
          states[static_cast<size_t>(t)] = static_cast<uint16_t>(t % 2 == 0 ? high : 128 * tile + t / 2);
        quant::exl3_pack(states.data(), 8, tiles.data() + 256 * tile);
      }
      for (const SimdLevel level : levels()) {
        use_simd_level(level);
        std::vector<float> panel(16 * 32, -77.0f);
        kernels().decode_exl3({tiles.data(), 256, 2, 8, codebook}, panel.data(), 32);
        for (int tile = 0; tile < 2; ++tile) {
          for (int c = 0; c < 16; ++c) {
            for (int p = 0; p < 16; ++p) {
              const uint16_t state =
                  quant::exl3_state(tiles.data() + 256 * tile, 8, quant::exl3_packed(exl3_panel_row(p), c));
              seen[state] = true;
              ASSERT_EQ(panel[static_cast<size_t>(32 * c + 16 * tile + p)], values[state])
                  << name_of(codebook) << " state " << state << " level " << static_cast<int>(level);
            }
          }
        }
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), quant::exl3_states);
  }
}

TEST(CodedExl3, PanelsOfEveryWidthOnEveryLevel) {
  const KeepLevel keep;
  Random random(11);
  for (int bits = 1; bits <= 8; ++bits) {
    constexpr int64_t count = 11, step = 300;  // tiles apart, more than are decoded at once
    // Exactly as long as the tiles: a read past the end is the sanitizer's to find.
    std::vector<std::byte> tiles(static_cast<size_t>((count - 1) * step + 32 * bits));
    for (std::byte& byte : tiles) byte = static_cast<std::byte>(random.below(256));
    const float* values = quant::exl3_values(Exl3Codebook::mul1);
    for (const SimdLevel level : levels()) {
      use_simd_level(level);
      std::vector<float> panel(16 * 16 * count);
      kernels().decode_exl3({tiles.data(), step, count, bits, Exl3Codebook::mul1}, panel.data(), 16 * count);
      for (int64_t i = 0; i < count; ++i) {
        float tile[256];
        quant::exl3_decode_columns(tiles.data() + i * step, bits, values, tile, 16);
        for (int c = 0; c < 16; ++c)
          for (int p = 0; p < 16; ++p)
            ASSERT_EQ(panel[static_cast<size_t>(c * 16 * count + 16 * i + p)], tile[16 * c + exl3_panel_row(p)])
                << bits << " bits, level " << static_cast<int>(level);
      }
    }
  }
}

// Lanes, tree and order of a tile's inputs, one step at a time.
TEST(CodedExl3, SumsAreThoseOfThePanelOnEveryLevel) {
  const KeepLevel keep;
  Random random(12);
  for (int bits = 1; bits <= 8; ++bits) {
    const Exl3Codebook codebook = codebooks[bits % 3];
    constexpr int64_t count = 5, step = 260, columns = 16 * count;
    std::vector<std::byte> tiles(static_cast<size_t>((count - 1) * step + 32 * bits));
    for (std::byte& byte : tiles) byte = static_cast<std::byte>(random.below(256));
    const Exl3Tiles strip{tiles.data(), step, count, bits, codebook};
    const std::vector<float> x = random.normals(8 * columns);
    use_simd_level(SimdLevel::scalar);
    std::vector<float> panel(16 * columns);
    kernels().decode_exl3(strip, panel.data(), columns);
    std::vector<float> expected;
    for (int64_t r = 0; r < 8; ++r) {
      for (int64_t o = 0; o < 16; ++o) {
        float lanes[16] = {};
        for (int64_t k = 0; k < columns; ++k)
          lanes[k % 16] = std::fma(panel[static_cast<size_t>(o * columns + k)], x[static_cast<size_t>(r * columns + k)],
                                   lanes[k % 16]);
        for (int width = 8; width > 0; width /= 2)
          for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
        expected.push_back(lanes[0]);
      }
    }
    for (const SimdLevel level : levels()) {
      use_simd_level(level);
      for (int64_t rows = 1; rows <= kernels().exl3_most_rows; ++rows) {
        std::vector<float> sums = test::unwritten(16 * rows);
        kernels().exl3_sums({strip, x.data(), columns, rows, sums.data()});
        ASSERT_TRUE(same_bits(sums.data(), expected.data(), 16 * rows))
            << bits << " bits, " << rows << " rows, level " << static_cast<int>(level);
      }
    }
  }
}

TEST(CodedExl3, InputsAreScaledTransformedAndPackedOnEveryLevel) {
  const KeepLevel keep;
  Random random(13);
  for (const int64_t count : {1, 127, 128, 384, 500}) {
    const int64_t blocks = (count + 127) / 128;
    // Odd addresses, and exactly as long as the blocks.
    std::vector<std::byte> signs(static_cast<size_t>(1 + 16 * blocks)), halves(static_cast<size_t>(1 + 256 * blocks));
    for (std::byte& byte : signs) byte = static_cast<std::byte>(random.below(256));
    std::vector<float> scales;
    for (int64_t i = 0; i < 128 * blocks; ++i) {
      // Subnormal fp16 numbers too.
      const uint16_t half = quant::float_to_half(random.normal() * (i % 5 == 0 ? 1e-6f : 1.0f));
      std::memcpy(halves.data() + 1 + 2 * i, &half, 2);
      scales.push_back(quant::half_to_float(half));
    }
    const std::vector<float> x = random.normals(count);
    for (const bool use_signs : {false, true}) {
      std::vector<float> expected(static_cast<size_t>(128 * blocks)), packed(expected.size());
      for (int64_t i = 0; i < count; ++i) {
        const bool minus = (static_cast<int>(signs[static_cast<size_t>(1 + i / 8)]) >> (i % 8) & 1) != 0;
        const auto at = static_cast<size_t>(i);
        expected[at] = x[at] * (!use_signs ? scales[at] : minus ? -1.0f : 1.0f);
      }
      quant::hadamard128(expected.data(), blocks);
      for (int64_t i = 0; i < 128 * blocks; ++i)
        packed[static_cast<size_t>(i)] =
            expected[static_cast<size_t>(i / 16 * 16 + exl3_panel_row(static_cast<int>(i % 16)))];
      for (const SimdLevel level : levels()) {
        use_simd_level(level);
        std::vector<float> y = test::unwritten(128 * blocks);
        kernels().exl3_inputs({(use_signs ? signs : halves).data() + 1, use_signs, x.data(), count, y.data()});
        ASSERT_TRUE(same_bits(y, packed)) << count << " inputs, level " << static_cast<int>(level);
      }
    }
  }
}

// One weight at a time, out of a row of 32: all codes under all scales, NaN too.
TEST(CodedNvfp4, AllCodesAndScalesOnEveryLevel) {
  const KeepLevel keep;
  std::vector<std::byte> codes(127 * 16), scales(127 * 2);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(2 * i % 16 | (2 * i + 1) % 16 << 4);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(i / 2);
  Matrix m;
  m.format = WeightFormat::nvfp4;
  m.data = codes.data();
  m.block_scales = scales.data();
  m.out_features = 127;
  m.in_features = m.leaf_columns = 32;
  m.outer_scale = 0.37f;
  for (const SimdLevel level : levels()) {
    use_simd_level(level);
    for (const bool high_first : {false, true}) {
      m.high_nibble_first = high_first;
      for (size_t k = 0; k < 32; ++k) {
        std::array<float, 32> x{};
        x[k] = 1;
        std::array<float, 127> y{};
        multiply({&m, 0, 127, 0, 32, x.data(), 32, 1, y.data(), 127});
        for (size_t o = 0; o < 127; ++o)
          ASSERT_EQ(y[o], quant::e2m1_values[(high_first ? k ^ 1 : k) % 16] * quant::e4m3_values[o] * 0.37f)
              << "code " << k % 16 << " scale " << o << " level " << static_cast<int>(level);
      }
    }
  }
}

struct Case {
  WeightFormat format;
  int64_t out, in, leaf;
  test::MatrixOptions options = {};
};

std::vector<Case> cases() {
  std::vector<Case> list = {
      {WeightFormat::nvfp4, 1, 16, 16, {.misaligned = 1}},
      {WeightFormat::nvfp4, 203, 96, 48, {}},
      {WeightFormat::nvfp4, 70, 1344, 704, {}},
      {WeightFormat::nvfp4, 5, 2064, 2064, {}},
      {WeightFormat::exl3, 1, 1, 1, {.misaligned = 1}},
      {WeightFormat::exl3, 100, 200, 128, {.signs = true}},
      {WeightFormat::exl3, 300, 1337, 640, {}},
  };
  for (int bits = 1; bits <= 8; ++bits)
    list.push_back({WeightFormat::exl3,
                    256,
                    384,
                    bits % 2 == 0 ? 384 : 256,
                    {.misaligned = bits % 3, .bits = bits, .codebook = codebooks[bits % 3]}});
  return list;
}

test::StoredMatrix stored(Random& random, const Case& c) {
  test::MatrixOptions options = c.options;
  options.leaf_columns = c.leaf;
  return test::random_matrix(random, c.format, c.out, c.in, options);
}

TEST(Coded, AgainstDouble) {
  device::Threads threads(3);
  Random random(1);
  for (const Case& c : cases()) {
    const auto w = stored(random, c);
    for (const int64_t rows : {1, 67}) {
      const std::vector<float> x = random.normals(rows * c.in);
      std::vector<float> y = test::unwritten(rows * c.out);
      linear(threads, w.view, x.data(), y.data(), rows);
      // EXL3 adds transformed values: its rounding errors are as large as the whole row's, not as one output's terms.
      double squares = 0, worst = 0;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < c.out; ++o) {
          double sum = 0, size = 0;
          for (int64_t k = 0; k < c.in; ++k) {
            const double term = w.at(o, k) * x[static_cast<size_t>(r * c.in + k)];
            sum += term;
            size += std::abs(term);
          }
          const double error = std::abs(y[static_cast<size_t>(r * c.out + o)] - sum);
          if (c.format == WeightFormat::nvfp4) {
            ASSERT_LE(error, 3e-7 * size) << c.out << "x" << c.in << " " << r << " " << o;
          }
          ASSERT_FALSE(std::isnan(error));
          squares += sum * sum;
          worst = std::max(worst, error);
        }
      }
      EXPECT_LE(worst, 3e-6 * std::sqrt(squares / static_cast<double>(rows * c.out)) + 1e-6)
          << c.out << "x" << c.in << " " << c.options.bits << " bits " << rows << " rows";
    }
  }
}

TEST(Coded, BitsDoNotDependOnRowsThreadsAndLevel) {
  const KeepLevel keep;
  device::Threads one(1), three(3);
  for (const Case& c : cases()) {
    Random random(2);
    const int64_t most = 66;
    const auto w = stored(random, c);
    const std::vector<float> x = random.normals(most * c.in);
    std::vector<float> expected;
    use_simd_level(SimdLevel::scalar);
    for (int64_t r = 0; r < most; ++r) {
      std::vector<float> y = test::unwritten(c.out);
      linear(one, w.view, x.data() + r * c.in, y.data(), 1);
      expected.insert(expected.end(), y.begin(), y.end());
    }
    for (const SimdLevel level : levels()) {
      use_simd_level(level);
      for (const int64_t rows : {1, 2, 3, 8, 65, 66}) {
        std::vector<float> y = test::unwritten(rows * c.out);
        linear(rows % 2 == 0 ? three : one, w.view, x.data(), y.data(), rows);
        ASSERT_TRUE(same_bits(y.data(), expected.data(), rows * c.out))
            << rows << " rows, " << c.out << "x" << c.in << ", level " << static_cast<int>(level);
      }
    }
  }
}

std::vector<float> product(const Matrix& m, const float* x, int64_t x_stride, int64_t rows) {
  device::Threads threads(2);
  std::vector<float> y = test::unwritten(rows * m.out_features);
  const LinearCall call{&m, x, x_stride, y.data(), m.out_features};
  linear(threads, std::span(&call, 1), rows);
  return y;
}

TEST(Coded, RowsOfAMatrixAreItsOutputs) {
  Random random(3);
  for (const Case& c : {Case{WeightFormat::nvfp4, 300, 176, 128, {.misaligned = 1}},
                        Case{WeightFormat::exl3, 500, 200, 128, {.bits = 3}},
                        Case{WeightFormat::exl3, 512, 128, 128, {.bits = 2, .signs = true}}}) {
    const auto m = stored(random, c);
    const int64_t unit = output_unit(m.view);
    const std::vector<float> x = random.normals(7 * c.in);
    const std::vector<float> whole = product(m.view, x.data(), c.in, 7);
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
             {0, c.out}, {0, unit}, {unit, c.out - unit}, {unit, unit}, {c.out, 0}}) {
      const Matrix rows = rows_of(m.view, first, count);
      const std::vector<float> part = product(rows, x.data(), c.in, 7);
      for (int64_t r = 0; r < 7; ++r)
        EXPECT_TRUE(same_bits(part.data() + r * count, whole.data() + r * c.out + first, count)) << first;
    }
  }
}

// Leaf 0 + leaf 1 of the two halves = the whole, for borders inside and between slices.
TEST(Coded, ColumnsOfAMatrixAreItsLeaves) {
  Random random(4);
  const int64_t in = 2304, out = 130, rows = 3;
  for (const WeightFormat format : {WeightFormat::nvfp4, WeightFormat::exl3}) {
    for (const int64_t border : {128, 1024, 1152, 2048}) {
      const auto m = stored(random, {format, out, in, border, {.signs = border == 1024}});
      const std::vector<float> x = random.normals(rows * in);
      const std::vector<float> whole = product(m.view, x.data(), in, rows);
      std::vector<float> sum;
      for (const auto& [first, count] : {std::pair{int64_t{0}, border}, {border, in - border}}) {
        const std::vector<float> leaf = product(columns_of(m.view, first, count), x.data() + first, in, rows);
        if (sum.empty()) {
          sum = leaf;
        } else {
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += leaf[i];
        }
      }
      EXPECT_TRUE(same_bits(sum, whole)) << static_cast<int>(format) << " " << border;
    }
  }
}

TEST(Coded, CutsBetweenUnitsOnly) {
  Random random(5);
  const auto exl3 = stored(random, {WeightFormat::exl3, 256, 256, 256});
  const auto nvfp4 = stored(random, {WeightFormat::nvfp4, 8, 64, 64});
  EXPECT_THROW(rows_of(exl3.view, 64, 128), Error);
  EXPECT_THROW(rows_of(exl3.view, 0, 64), Error);
  EXPECT_THROW(columns_of(exl3.view, 16, 128), Error);
  EXPECT_THROW(columns_of(nvfp4.view, 8, 16), Error);
  EXPECT_NO_THROW(rows_of(nvfp4.view, 3, 1));
  EXPECT_NO_THROW(columns_of(nvfp4.view, 16, 48));
  EXPECT_EQ(rows_of(exl3.view, 256, 0).out_features, 0);
}

}  // namespace
}  // namespace tandem::ops::coded_test
