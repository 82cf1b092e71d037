// Rotary embedding against its formula in double precision.
#include "ops/rope/rope.h"

#include "ops/test_random.h"

namespace tandem::ops::rope_test {
namespace {

TEST(Rope, Formula) {
  test::Random random(1);
  for (const int64_t dim : {2, 6, 64, 128}) {
    std::vector<float> frequencies(static_cast<size_t>(dim / 2)), turns(static_cast<size_t>(3 * dim));
    rope_frequencies(10000.0, dim, frequencies.data());
    const std::vector<int64_t> positions = {0, 1, 2047};
    rope_turns(positions, frequencies.data(), dim, turns.data());
    for (size_t p = 0; p < positions.size(); ++p) {
      const std::vector<float> x = random.normals(dim);
      std::vector<float> y = x;
      rope(turns.data() + static_cast<int64_t>(p) * dim, dim, y.data());
      EXPECT_EQ(x == y, positions[p] == 0) << "position 0 turns nothing";
      std::vector<double> expected(x.size());
      for (int64_t j = 0; j < dim / 2; ++j) {
        const double phase = test::real(positions[p]) * std::pow(10000.0, -2.0 * test::real(j) / test::real(dim));
        const auto low = static_cast<size_t>(j), high = static_cast<size_t>(j + dim / 2);
        expected[low] = x[low] * std::cos(phase) - x[high] * std::sin(phase);
        expected[high] = x[high] * std::cos(phase) + x[low] * std::sin(phase);
      }
      EXPECT_TRUE(test::close(y, expected, 3e-4)) << "the phase is a product in fp32";
    }
  }
}

// Scores depend on distances alone: (R_p q)·(R_r k) = (R_{p+9} q)·(R_{r+9} k).
TEST(Rope, ScoresDependOnDistances) {
  constexpr int64_t dim = 128;
  test::Random random(2);
  std::vector<float> frequencies(dim / 2);
  rope_frequencies(10000.0, dim, frequencies.data());
  const std::vector<float> q = random.normals(dim), k = random.normals(dim);
  const auto score = [&](int64_t at_q, int64_t at_k) {
    std::vector<float> turns(2 * dim), a = q, b = k;
    rope_turns(std::vector{at_q, at_k}, frequencies.data(), dim, turns.data());
    rope(turns.data(), dim, a.data());
    rope(turns.data() + dim, dim, b.data());
    double sum = 0;
    for (size_t i = 0; i < dim; ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
  };
  EXPECT_NEAR(score(40, 33), score(49, 42), 1e-4);
  EXPECT_GT(std::abs(score(40, 33) - score(40, 34)), 1e-3);
}

}  // namespace
}  // namespace tandem::ops::rope_test
