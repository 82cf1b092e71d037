// E4M3 against its definition, and 128×128 blocks (spec/quantization.md 5.2, 5.3).
#include "quant/fp8.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "quant/test_golden.h"

namespace tandem::quant::fp8_test {
namespace {

double e4m3_by_definition(int code) {
  const double sign = code & 0x80 ? -1 : 1;
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  return exponent == 0 ? sign * std::ldexp(mantissa, -9) : sign * std::ldexp(8 + mantissa, exponent - 10);
}

TEST(E4m3, EveryCodeHasItsValueAndComesBack) {
  for (int code = 0; code < 256; ++code) {
    const double expected = e4m3_by_definition(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(e4m3_values[code])) << code;
      continue;
    }
    EXPECT_EQ(e4m3_values[code], expected) << code;
    EXPECT_EQ(std::signbit(e4m3_values[code]), code >= 128) << code;
    EXPECT_EQ(e4m3_encode(e4m3_values[code]), code);
  }
}

TEST(E4m3, RoundsToNearestWithTiesToTheEvenCode) {
  for (int code = 0; code < 0x7e; ++code) {
    const float middle = (e4m3_values[code] + e4m3_values[code + 1]) / 2;
    EXPECT_EQ(e4m3_encode(middle), code + (code & 1)) << code;
    EXPECT_EQ(e4m3_encode(-middle), 0x80 + code + (code & 1)) << code;
    EXPECT_EQ(e4m3_encode(std::nextafter(middle, 0.0f)), code) << code;
    EXPECT_EQ(e4m3_encode(std::nextafter(middle, 1e9f)), code + 1) << code;
  }
}

TEST(E4m3, SaturatesInsteadOfMakingNaN) {
  EXPECT_EQ(e4m3_encode(448.0f), 0x7e);
  EXPECT_EQ(e4m3_encode(464.0f), 0x7e);
  EXPECT_EQ(e4m3_encode(1e30f), 0x7e);
  EXPECT_EQ(e4m3_encode(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(e4m3_encode(std::nanf("")), 0x7f);
  EXPECT_EQ(e4m3_encode(-0.0f), 0x80);
  EXPECT_EQ(e4m3_encode(1e-30f), 0x00);
}

TEST(Scale, PowerOfTwoIsTheSmallestNotBelow) {
  EXPECT_EQ(power_of_two_at_least(1.0f), 1.0f);
  EXPECT_EQ(power_of_two_at_least(1.0000001f), 2.0f);
  EXPECT_EQ(power_of_two_at_least(0.75f), 1.0f);
  EXPECT_EQ(power_of_two_at_least(smallest_scale), smallest_scale);
  EXPECT_EQ(power_of_two_at_least(0x1.8p-126f), 0x1p-125f);
}

TEST(Scale, OfZerosIsTheSmallestNormalNumber) {
  EXPECT_EQ(scale_for(0, e4m3_max), std::numeric_limits<float>::min());
  EXPECT_EQ(scale_for(3.5f, e4m3_max), 0.0078125f);
}

TEST(Scale, AValueThatIsNotFiniteIsNamed) {
  std::vector<float> row(20, 1.0f);
  row[7] = std::nanf("");
  try {
    absolute_max(row.data(), 20, "latent row");
    FAIL() << "a NaN was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), "latent row");
    EXPECT_EQ(error.found(), "nan in column 7");
    EXPECT_EQ(error.expected(), "finite values");
  }
  row[7] = -std::numeric_limits<float>::infinity();
  EXPECT_THROW(absolute_max(row.data(), 20, "latent row"), Error);
  EXPECT_EQ(absolute_max(row.data(), 7, "latent row"), 1.0f);
}

std::vector<float> decode_blocks(const std::vector<std::byte>& codes, const std::vector<float>& scales, int64_t rows,
                                 int64_t columns) {
  std::vector<float> out(static_cast<size_t>(rows * columns));
  const auto* bytes = reinterpret_cast<const std::byte*>(scales.data());
  for (int64_t row = 0; row < rows; ++row)
    fp8_block_decode_row(codes.data(), bytes, row, columns, out.data() + row * columns);
  return out;
}

TEST(Fp8Blocks, EachBlockHasItsOwnScaleAndPartialBlocksCount) {
  const int64_t rows = 200, columns = 300;
  std::vector<float> w = gaussian_values(static_cast<size_t>(rows * columns), 1);
  for (int64_t row = 128; row < rows; ++row)  // one block of zeros and a large one
    for (int64_t column = 0; column < columns; ++column) w[row * columns + column] *= column < 128 ? 0.0f : 1000.0f;
  std::vector<std::byte> codes(w.size());
  std::vector<float> scales(6);
  fp8_block_encode(w.data(), rows, columns, codes.data(), scales.data());
  EXPECT_EQ(scales[3], 1.0f);
  EXPECT_GT(scales[4], 100 * scales[1]);
  const std::vector<float> decoded = decode_blocks(codes, scales, rows, columns);
  for (size_t i = 0; i < w.size(); ++i)  // half a unit of three mantissa bits, or of a subnormal of a block
    ASSERT_LE(std::abs(decoded[i] - w[i]), std::abs(w[i]) / 16 + 1000 * 0x1p-10f * 0.02f) << i;
  EXPECT_LT(relative_l2(decoded, w), 0.03);

  std::vector<std::byte> again(codes.size());
  std::vector<float> scales_again(6);
  fp8_block_encode(decoded.data(), rows, columns, again.data(), scales_again.data());
  EXPECT_EQ(decode_blocks(again, scales_again, rows, columns), decoded);
}

TEST(Fp8Blocks, RefusesNaN) {
  std::vector<float> w(4, 1.0f), scales(1);
  std::vector<std::byte> codes(4);
  w[2] = std::nanf("");
  EXPECT_THROW(fp8_block_encode(w.data(), 2, 2, codes.data(), scales.data()), Error);
}

}  // namespace
}  // namespace tandem::quant::fp8_test
