// Range reduction by powers of two and a short series, without fma: compilers without a hardware fma in their target
// would call a slow function.
#include "base/portable_math.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tandem {
namespace {

// ln 2 in two pieces: the first has its last 21 bits zero, so k·ln2_high is exact for |k| < 2^20.
constexpr double ln2_high = 0x1.62e42feep-1;
constexpr double ln2_low = 0x1.a39ef35793c76p-33;

}  // namespace

double portable_exp(double x) {
  if (x < -708.0) return 0.0;
  // Adding and taking away 1.5·2^52 rounds to an integer; k = x / ln 2.
  const double k = (x * 0x1.71547652b82fep+0 + 0x1.8p52) - 0x1.8p52;
  const double r = (x - k * ln2_high) - k * ln2_low;
  // Σ r^n / n!, |r| <= ln2/2: the first term left out is below 2^-60.
  static constexpr std::array<double, 14> reciprocal_factorials = {1.0,
                                                                   1.0,
                                                                   1.0 / 2,
                                                                   1.0 / 6,
                                                                   1.0 / 24,
                                                                   1.0 / 120,
                                                                   1.0 / 720,
                                                                   1.0 / 5040.0,
                                                                   1.0 / 40320.0,
                                                                   1.0 / 362880.0,
                                                                   1.0 / 3628800.0,
                                                                   1.0 / 39916800.0,
                                                                   1.0 / 479001600.0,
                                                                   1.0 / 6227020800.0};
  double sum = reciprocal_factorials.back();
  for (std::size_t n = reciprocal_factorials.size() - 1; n-- > 0;) sum = sum * r + reciprocal_factorials[n];
  const double scale = std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(k) + 1023) << 52);
  return sum * scale;
}

double portable_log(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  // x = m·2^k with m in [√½, √2).
  int64_t k = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffULL) | 0x3ff0000000000000ULL);
  if (m > 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    k += 1;
  }
  // ln m = 2 artanh(s) = 2s + 2s·z·(1/3 + z/5 + …) with s = (m−1)/(m+1), z = s²; written as f − s·(f − 2·tail) with
  // f = m − 1 (exact), whose rounding error is that of the last addition.
  const double f = m - 1.0;
  const double s = f / (m + 1.0);
  const double z = s * s;
  static constexpr std::array<double, 12> reciprocal_odds = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,
                                                             1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17,
                                                             1.0 / 19, 1.0 / 21, 1.0 / 23, 1.0 / 25};
  double series = reciprocal_odds.back();
  for (std::size_t n = reciprocal_odds.size() - 1; n-- > 0;) series = series * z + reciprocal_odds[n];
  const double tail = z * series;
  const double correction = s * (f - 2.0 * tail);  // 2s = f − s·f
  const auto kd = static_cast<double>(k);
  return kd * ln2_high + (f - (correction - kd * ln2_low));
}

}  // namespace tandem
