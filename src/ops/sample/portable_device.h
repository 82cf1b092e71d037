// base/portable_math.h and base/keyed_noise.h for kernels: the same operations in the same order, none of them fused,
// so the same bits.
#pragma once

#include "device/kernel.h"

namespace {

using namespace tandem;
using namespace tandem::device;

constexpr double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;

// e^x for x <= 0.
TANDEM_DEVICE double portable_exp(double x) {
  if (x < -708.0) return 0.0;
  const double k = subtract(add(multiply(x, 0x1.71547652b82fep+0), 0x1.8p52), 0x1.8p52);
  const double r = subtract(subtract(x, multiply(k, ln2_high)), multiply(k, ln2_low));
  constexpr double factors[] = {
      1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720,
      1.0 / 120,         1.0 / 24,         1.0 / 6,         1.0 / 2,        1.0,           1.0};
  double sum = 1.0 / 6227020800.0;
#pragma unroll
  for (int n = 0; n < 13; ++n) sum = add(multiply(sum, r), factors[n]);
  return multiply(sum, bits_to_double(static_cast<uint64_t>(static_cast<int64_t>(k) + 1023) << 52));
}

// ln(x) for finite, normal x > 0.
TANDEM_DEVICE double portable_log(double x) {
  const uint64_t bits = double_to_bits(x);
  int64_t k = static_cast<int64_t>(bits >> 52) - 1023;
  double m = bits_to_double((bits & 0x000fffffffffffffULL) | 0x3ff0000000000000ULL);
  if (m > 0x1.6a09e667f3bcdp+0) {
    m = multiply(m, 0.5);
    k += 1;
  }
  const double f = subtract(m, 1.0);
  const double s = divide(f, add(m, 1.0));
  const double z = multiply(s, s);
  constexpr double odds[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                             1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
  double series = 1.0 / 25;
#pragma unroll
  for (int n = 0; n < 11; ++n) series = add(multiply(series, z), odds[n]);
  const double tail = multiply(z, series);
  const double correction = multiply(s, subtract(f, multiply(2.0, tail)));
  const double kd = static_cast<double>(k);
  return add(multiply(kd, ln2_high), subtract(f, subtract(correction, multiply(kd, ln2_low))));
}

TANDEM_DEVICE uint64_t mix(uint64_t z) {
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9ULL;
  z ^= z >> 27;
  z *= 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}
// What all tokens of a row share.
TANDEM_DEVICE uint64_t noise_of_row(uint64_t seed, int64_t position) {
  return mix(mix(seed + 0x9E3779B97F4A7C15ULL) ^ (static_cast<uint64_t>(position) * 0xD1B54A32D192ED03ULL));
}
// 53 random bits of a token.
TANDEM_DEVICE uint64_t noise_bits(uint64_t of_row, int32_t token) {
  return mix(of_row ^ static_cast<uint64_t>(token)) >> 11;
}
TANDEM_DEVICE double gumbel(uint64_t bits) {
  const double u = add(multiply(static_cast<double>(bits), 0x1p-53), 0x1p-54), most = 1.0 - 0x1p-53;
  return -portable_log(-portable_log(u < most ? u : most));
}

}  // namespace
