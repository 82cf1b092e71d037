// The measures against direct computation in long double and against figures worked out by hand.
#include "eval/quality_math.h"

#include <cmath>
#include <limits>

#include "eval/test_quality.h"

namespace tandem::eval::quality_math_test {
namespace {

LogitRow normalised(const std::vector<float>& logits) {
  LogitRow row;
  EXPECT_TRUE(normalise(logits, row));
  return row;
}

// By the definition, term by term, with nothing shared with the code under test.
std::vector<long double> slow_log_p(const std::vector<float>& z) {
  std::vector<long double> result;
  for (const float one : z) {
    long double sum = 0;
    for (const float other : z) sum += std::exp(static_cast<long double>(other) - one);
    result.push_back(-std::log(sum));  // p = 1 / Σ exp(z' − z)
  }
  return result;
}

long double slow_kld(const std::vector<float>& teacher, const std::vector<float>& student) {
  const auto p = slow_log_p(teacher), q = slow_log_p(student);
  long double sum = 0;
  for (size_t v = 0; v < p.size(); ++v)
    if (p[v] > -1e4L) sum += std::exp(p[v]) * (p[v] - q[v]);
  return sum;
}

TEST(QualityMath, AgreesWithTheDefinition) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const int64_t vocab = 3 + 37 * seed;
    const auto teacher = random_logits(vocab, seed, 1 + static_cast<float>(seed)),
               student = random_logits(vocab, 100 + seed);
    const LogitRow p = normalised(teacher), q = normalised(student);
    const auto expected = static_cast<double>(slow_kld(teacher, student));
    EXPECT_NEAR(kl_divergence(p, q), expected, 1e-12 * std::max(1.0, expected));
    const auto log_p = slow_log_p(teacher);
    for (size_t v = 0; v < log_p.size(); ++v) EXPECT_NEAR(p.log_p[v], static_cast<double>(log_p[v]), 1e-12);
  }
}

TEST(QualityMath, ExtremeLogits) {
  const float huge = std::numeric_limits<float>::max();
  // All mass on one token: log p is 0 there and −Δ elsewhere.
  const LogitRow one = normalised({huge, -huge, 0});
  EXPECT_EQ(one.log_p[0], 0);
  EXPECT_EQ(one.p, (std::vector<double>{1, 0, 0}));
  EXPECT_EQ(kl_divergence(one, one), 0);
  // The student puts its mass elsewhere: the distance of the logits, not infinity.
  EXPECT_DOUBLE_EQ(kl_divergence(one, normalised({-huge, huge, 0})), 2.0 * huge);
  // Far from zero, no overflow: the same as at zero.
  const LogitRow shifted = normalised({1e30f, 1e30f, 1e30f, 1e30f});
  for (const double value : shifted.log_p) EXPECT_DOUBLE_EQ(value, -std::log(4.0));
  EXPECT_EQ(normalised({-88, -1000, -1e30f}).log_p[0], 0);
  EXPECT_EQ(normalised({7}).log_p[0], 0);
}

TEST(QualityMath, NotFinite) {
  LogitRow row;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    EXPECT_FALSE(normalise(std::vector<float>{0, 1, bad}, row));
    EXPECT_FALSE(normalise(std::vector<float>{bad, 1, 0}, row));
  }
}

TEST(QualityMath, TheBestTokenAndTies) {
  EXPECT_EQ(normalised({0, 3, 1}).best, 1);
  EXPECT_EQ(normalised({0, 3, 3}).best, 1);
  EXPECT_EQ(normalised({-5, -5}).best, 0);
}

// Second order: KLD(z ‖ z + ε·n) = ε²/2 · Var_p(n).
TEST(QualityMath, ASmallPerturbationCostsHalfItsVariance) {
  const auto teacher = random_logits(500, 1), noise = random_logits(500, 2, 1);
  const LogitRow p = normalised(teacher);
  double mean = 0, square = 0;
  for (size_t v = 0; v < 500; ++v) {
    mean += p.p[v] * noise[v];
    square += p.p[v] * noise[v] * noise[v];
  }
  for (const double step : {1e-1, 1e-2, 1e-3}) {
    auto student = teacher;
    for (size_t v = 0; v < 500; ++v) student[v] += static_cast<float>(step) * noise[v];
    const double expected = step * step / 2 * (square - mean * mean);
    EXPECT_NEAR(kl_divergence(p, normalised(student)) / expected, 1, step == 1e-1 ? 0.1 : 0.02) << step;
  }
}

TEST(QualityMath, DistributionByHand) {
  std::vector<double> values;
  for (int i = 40; i > 0; --i) values.push_back(i);  // 1 … 40
  const Distribution d = distribution_of(values);
  EXPECT_EQ(d.count, 40);
  EXPECT_DOUBLE_EQ(d.mean, 20.5);
  EXPECT_DOUBLE_EQ(d.deviation, std::sqrt(40 * 41 / 12.0));
  EXPECT_DOUBLE_EQ(d.p50, 20.5);
  EXPECT_DOUBLE_EQ(d.p95, 1 + 0.95 * 39);
  EXPECT_DOUBLE_EQ(d.p99, 1 + 0.99 * 39);
  EXPECT_DOUBLE_EQ(d.cvar95, 39.5);  // from index floor(0.95·40) = 38 on: 39 and 40
  EXPECT_DOUBLE_EQ(d.max, 40);
  const Distribution one = distribution_of(std::vector<double>{3});
  EXPECT_EQ(one.deviation, 0);
  EXPECT_EQ(one.p50, 3);
  EXPECT_EQ(one.cvar95, 3);
}

TEST(QualityMath, ErrorOverClusters) {
  // Clusters of one value: the textbook standard error.
  const std::vector<double> values = {1, 4, 2, 8, 5};
  const std::vector<int64_t> ones(5, 1);
  EXPECT_DOUBLE_EQ(clustered_error(values, ones).value(), distribution_of(values).deviation / std::sqrt(5));
  // The same value many times within a cluster tells no more than once.
  const std::vector<double> repeated = {1, 1, 1, 1, 4, 4, 4, 4, 2, 2, 2, 2, 8, 8, 8, 8, 5, 5, 5, 5};
  EXPECT_NEAR(clustered_error(repeated, std::vector<int64_t>(5, 4)).value(), clustered_error(values, ones).value(),
              1e-15);
  // By hand: mean 4, sums less 3·4 and 1·4: 6 − 12 = −6, 10 − 4 = 6; sqrt(2/1 · 72) / 4 = 3.
  EXPECT_DOUBLE_EQ(clustered_error(std::vector<double>{1, 2, 3, 10}, std::vector<int64_t>{3, 1}).value(), 3);
  EXPECT_FALSE(clustered_error(values, std::vector<int64_t>{5}).has_value());
  EXPECT_DOUBLE_EQ(population_deviation(std::vector<double>{1, 3}), 1);
}

}  // namespace
}  // namespace tandem::eval::quality_math_test
