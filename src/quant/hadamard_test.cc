// The Walsh–Hadamard transform against the check vector of spec/quantization.md 1.3 and its matrix.
#include "quant/hadamard.h"

#include <bit>
#include <cmath>

#include "quant/test_golden.h"

namespace tandem::quant::hadamard_test {
namespace {

TEST(Hadamard, CheckVector) {
  std::vector<float> v(128);
  for (int i = 0; i < 128; ++i) v[i] = static_cast<float>(i) / 64 - 1;
  hadamard128(v.data());
  const std::vector<std::pair<int, float>> expected = {
      {0, -0.0883883f},  {1, -0.0883883f},  {2, -0.1767767f},  {3, 0},  {4, -0.3535534f}, {8, -0.7071068f},
      {16, -1.4142136f}, {32, -2.8284271f}, {64, -5.6568542f}, {96, 0}, {127, 0}};
  for (const auto& [index, value] : expected) EXPECT_NEAR(v[index], value, 5e-7) << index;
}

TEST(Hadamard, IsTheMatrixOfItsDefinition) {
  for (const int n : {1, 2, 32, 64, 128, 256}) {
    const std::vector<float> x = gaussian_values(n, 5);
    std::vector<float> y = x;
    hadamard(y.data(), n);
    for (int i = 0; i < n; ++i) {
      double sum = 0;
      for (int j = 0; j < n; ++j) sum += (std::popcount(static_cast<unsigned>(i & j)) & 1 ? -1.0 : 1.0) * x[j];
      EXPECT_NEAR(y[i], sum / std::sqrt(n), 2e-6) << n << " " << i;
    }
    hadamard(y.data(), n);  // its own inverse
    for (int i = 0; i < n; ++i) EXPECT_NEAR(y[i], x[i], 2e-6) << n << " " << i;
  }
}

// The value tree of output i: a SIMD or GPU version that follows it has these bits.
float tree(const std::vector<float>& x, int first, int count, int i) {
  if (count == 1) return x[first];
  const float low = tree(x, first, count / 2, i), high = tree(x, first + count / 2, count / 2, i);
  return i & count / 2 ? low - high : low + high;
}

TEST(Hadamard, EveryOutputIsOneFixedTree) {
  const std::vector<float> x = gaussian_values(256, 6);
  std::vector<float> y = x;
  hadamard128(y.data(), 2);
  for (int block = 0; block < 256; block += 128)
    for (int i = 0; i < 128; ++i) EXPECT_EQ(y[block + i], tree(x, block, 128, i) * hadamard_factor);
  std::vector<float> one(x.begin(), x.begin() + 128);
  hadamard(one.data(), 128);
  for (int i = 0; i < 128; ++i) EXPECT_EQ(one[i], y[i]);
}

TEST(Hadamard, TheFactorIsTheNearestFloat) { EXPECT_EQ(hadamard_factor, static_cast<float>(1 / std::sqrt(128.0))); }

}  // namespace
}  // namespace tandem::quant::hadamard_test
