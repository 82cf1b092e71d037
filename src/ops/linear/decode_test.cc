// Weights as plain numbers, whole and parts, against what the test matrices mean.
#include "ops/linear/decode.h"

#include "ops/test_random.h"

namespace tandem::ops::decode_test {
namespace {

using test::Random;
using test::same_bits;

struct Case {
  WeightFormat format;
  int64_t out, in;
  test::MatrixOptions options = {};
};
const Case cases[] = {{WeightFormat::f32, 5, 33, {.misaligned = 1}},
                      {WeightFormat::bf16, 5, 33, {.misaligned = 1}},
                      {WeightFormat::fp8_block, 200, 150, {.block_row = 100, .misaligned = 3}},
                      {WeightFormat::nvfp4, 20, 64, {.misaligned = 1}},
                      {WeightFormat::exl3, 300, 200, {.misaligned = 1, .bits = 3}},
                      {WeightFormat::exl3, 256, 256, {.bits = 5, .signs = true}}};

TEST(Decode, WholeMatricesOfEveryFormat) {
  Random random(1);
  for (const Case& c : cases) {
    const auto m = test::random_matrix(random, c.format, c.out, c.in, c.options);
    EXPECT_TRUE(same_bits(decode(m.view), m.values)) << static_cast<int>(c.format);
  }
}

// EXL3: parts of whole transforms are decoded as they are in the whole.
TEST(Decode, PartsAreThoseOfTheWhole) {
  Random random(2);
  for (const Case& c : cases) {
    const auto m = test::random_matrix(random, c.format, c.out, c.in, c.options);
    const bool exl3 = c.format == WeightFormat::exl3;
    const int64_t row = exl3 ? 128 : 2, column = exl3 ? 128 : 16;
    const auto expect_part = [&](const Matrix& part, int64_t first_row, int64_t first_column) {
      std::vector<float> expected;
      for (int64_t o = 0; o < part.out_features; ++o)
        for (int64_t k = 0; k < part.in_features; ++k)
          expected.push_back(m.values[static_cast<size_t>((first_row + o) * c.in + first_column + k)]);
      EXPECT_TRUE(same_bits(decode(part), expected)) << static_cast<int>(c.format);
    };
    expect_part(rows_of(m.view, row, c.out - row), row, 0);
    expect_part(columns_of(m.view, column, c.in - column), 0, column);
    expect_part(columns_of(rows_of(m.view, row, c.out - row), column, c.in - column), row, column);
    EXPECT_TRUE(decode(rows_of(m.view, 0, 0)).empty());
  }
}

}  // namespace
}  // namespace tandem::ops::decode_test
