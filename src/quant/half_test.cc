// fp16 and bf16 against their definitions.
#include "quant/half.h"

#include <cmath>
#include <limits>

namespace tandem::quant::half_test {
namespace {

// The value of an fp16 pattern by the definition of the format.
double half_by_definition(unsigned bits) {
  const double sign = bits & 0x8000u ? -1 : 1;
  const int exponent = static_cast<int>(bits >> 10 & 31u);
  const unsigned mantissa = bits & 0x3ffu;
  if (exponent == 31) return mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryPatternHasItsValueAndComesBack) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const double expected = half_by_definition(bits);
    const float value = half_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(half_to_float(float_to_half(value)))) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000u) != 0) << bits;
      ASSERT_EQ(float_to_half(value), bits);
    }
  }
}

TEST(Half, RoundsToNearestWithTiesToEven) {
  for (unsigned bits = 0; bits + 1 < 0x7c00; ++bits) {
    const double low = half_by_definition(bits), high = half_by_definition(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);  // exact: one bit more than fp16 has
    ASSERT_EQ(float_to_half(middle), bits + (bits & 1u)) << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 1e9f)), bits + 1) << bits;
  }
  EXPECT_EQ(float_to_half(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-1e30f), 0xfc00);
}

TEST(Bfloat16, RoundsToNearestWithTiesToEven) {
  EXPECT_EQ(round_to_bf16(1.0f), 1.0f);
  EXPECT_EQ(round_to_bf16(1.00390625f), 1.0f);          // 1 + 2^-8: tie, even is 1
  EXPECT_EQ(round_to_bf16(1.01171875f), 1.015625f);     // 1 + 3·2^-8: tie, even is 1 + 2^-6
  EXPECT_EQ(round_to_bf16(-1.00390649f), -1.0078125f);  // just above the tie
  EXPECT_TRUE(std::isnan(round_to_bf16(std::nanf(""))));
  EXPECT_EQ(round_to_bf16(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace tandem::quant::half_test
