// The e4m3 table against the definition of the format.
#include "ops/simd/fp8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace tandem::ops::fp8_test {
namespace {

TEST(Fp8, TableIsTheDefinition) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float found = fp8_e4m3_values[code];
    EXPECT_EQ(std::signbit(found) != 0, code >= 128 && !std::isnan(found)) << code;
    if (exponent == 15 && mantissa == 7) {
      EXPECT_TRUE(std::isnan(found)) << code;
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
    EXPECT_EQ(std::abs(found), magnitude) << code;
  }
  EXPECT_EQ(fp8_e4m3_values[0x7e], 448.0f);   // the largest
  EXPECT_EQ(fp8_e4m3_values[0x01], 0x1p-9f);  // the smallest
  EXPECT_EQ(fp8_e4m3_values[0x38], 1.0f);
  EXPECT_EQ(std::bit_cast<uint32_t>(fp8_e4m3_values[0x80]), 0x80000000u);
}

}  // namespace
}  // namespace tandem::ops::fp8_test
