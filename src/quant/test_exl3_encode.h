// Matrices and moments that the encoder's tests share. Only tests include this.
#pragma once

#include <cmath>
#include <span>

#include "quant/exl3_encode.h"
#include "quant/exl3_matrix.h"
#include "quant/test_golden.h"

namespace tandem::quant {

// The trellis search is fifty times slower with sanitizers: tests look at fewer cases.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

// H[i][j] = d_i·d_j·ρ^|i−j|, d = 5 every 32nd index and 1 elsewhere (spec/quantization.md 2.9).
inline Exl3Moments correlated_moments(int64_t n, double rho) {
  Exl3Moments m;
  m.features = n;
  m.weight = 1;
  m.rows = 1;
  m.sums.resize(static_cast<size_t>(n * n));
  const auto d = [](int64_t i) { return i % 32 == 0 ? 5.0 : 1.0; };
  for (int64_t i = 0; i < n; ++i) {
    double power = 1;
    for (int64_t j = i; j >= 0; --j, power *= rho) m.sums[static_cast<size_t>(i * n + j)] = d(i) * d(j) * power;
  }
  return m;
}

// fp32 [out, in] with the rows and columns multiplied by 10^(3(u−½)) (spec/quantization.md 9, item 9).
inline std::vector<float> uneven_weights(int64_t out, int64_t in, uint32_t seed) {
  Lcg random(seed);
  const auto scales = [&random](int64_t count) {
    std::vector<double> values(static_cast<size_t>(count));
    for (double& v : values) v = std::pow(10.0, 3 * (random.uniform() - 0.5));
    return values;
  };
  const std::vector<double> rows = scales(out), columns = scales(in);
  std::vector<float> w(static_cast<size_t>(out * in));
  for (int64_t n = 0; n < out; ++n)
    for (int64_t k = 0; k < in; ++k)
      w[static_cast<size_t>(n * in + k)] =
          static_cast<float>(random.gaussian() * rows[static_cast<size_t>(n)] * columns[static_cast<size_t>(k)]);
  return w;
}

}  // namespace tandem::quant
