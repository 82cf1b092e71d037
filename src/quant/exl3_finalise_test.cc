// The factor against the matrix that it factors, the retries, the fallback, and what is refused.
#include "quant/exl3_finalise.h"

#include <cmath>

#include "base/error.h"
#include "quant/exl3_viterbi.h"
#include "quant/hadamard.h"
#include "quant/test_golden.h"

namespace tandem::quant::exl3_finalise_test {
namespace {

// Sums over random rows with a few strong features.
Exl3Moments sampled(int64_t n, int64_t rows, uint32_t seed) {
  Exl3Moments m;
  m.features = n;
  m.sums.resize(static_cast<size_t>(n * n));
  m.weight = static_cast<double>(rows);
  m.rows = rows;
  Lcg random(seed);
  std::vector<double> x(static_cast<size_t>(n));
  for (int64_t row = 0; row < rows; ++row) {
    double walk = 0;
    for (int64_t i = 0; i < n; ++i) {
      walk = 0.8 * walk + random.gaussian();
      x[static_cast<size_t>(i)] = i % 32 == 0 ? 5 * walk : walk;
    }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j <= i; ++j)
        m.sums[static_cast<size_t>(i * n + j)] += x[static_cast<size_t>(i)] * x[static_cast<size_t>(j)];
  }
  return m;
}

// Scales of the inputs as a matrix might have them.
std::vector<float> uneven(const Exl3Finalised& f) {
  std::vector<float> suh(f.signs);
  for (size_t i = 0; i < suh.size(); ++i) suh[i] *= 0.01f * static_cast<float>(1 + i % 5);
  return suh;
}

double mean_square(const Exl3Moments& m) {
  double sum = 0;
  for (int64_t i = 0; i < m.features; ++i) sum += m.sums[static_cast<size_t>(i * m.features + i)];
  return sum / m.weight / static_cast<double>(m.features);
}

TEST(Exl3Finalise, HessianIsTheDampedRotatedMoment) {
  device::Threads threads(2);
  const Exl3Moments m = sampled(200, 300, 1);  // padded to 256
  const Exl3Finalised finalised = exl3_finalise("layer", m, 7, threads);
  ASSERT_FALSE(finalised.fallback);
  EXPECT_EQ(finalised.retries, 0);
  EXPECT_EQ(finalised.padded, 256);
  const std::vector<float> suh = uneven(finalised);
  double mean = 0;
  for (size_t i = 0; i < 200; ++i) mean += std::abs(suh[i]) / 200;
  const Exl3Factor f = exl3_factor("layer", finalised, suh, threads);
  const double damping = exl3_damping * mean_square(m);
  // A few elements by the definition Σ h·(s H s)·h.
  for (const auto& [r, c] : {std::pair<int64_t, int64_t>{3, 5}, {130, 70}, {200, 255}, {255, 255}}) {
    double sum = 0;
    for (int64_t i = r / 128 * 128; i < r / 128 * 128 + 128; ++i) {
      for (int64_t j = c / 128 * 128; j < c / 128 * 128 + 128; ++j) {
        double value = i == j ? damping : 0;
        if (i < 200 && j < 200) value += m.sums[static_cast<size_t>(std::max(i, j) * 200 + std::min(i, j))] / m.weight;
        value *= suh[static_cast<size_t>(i)] * suh[static_cast<size_t>(j)] / (mean * mean);
        const bool odd = (__builtin_popcountll(r & i & 127) + __builtin_popcountll(c & j & 127)) % 2 != 0;
        sum += (odd ? -value : value) / 128;
      }
    }
    EXPECT_NEAR(f.hessian[static_cast<size_t>(r * 256 + c)], sum, 1e-5 * std::abs(sum) + 1e-5);
    EXPECT_EQ(f.hessian[static_cast<size_t>(r * 256 + c)], f.hessian[static_cast<size_t>(c * 256 + r)]);
  }
  for (int64_t i = 0; i < 200; ++i)
    EXPECT_NEAR(finalised.moment[static_cast<size_t>(i * 201)],
                m.sums[static_cast<size_t>(i * 201)] / m.weight + damping, 1e-9);
}

TEST(Exl3Finalise, FeedbackIsTheUnitBlockFactor) {
  device::Threads threads(2);
  const Exl3Finalised finalised = exl3_finalise("layer", sampled(256, 400, 2), 7, threads);
  const Exl3Factor f = exl3_factor("layer", finalised, uneven(finalised), threads);
  const size_t n = 256;
  // L⁻¹·H·L⁻ᵀ must be block diagonal: eliminate with the factor, last block first.
  std::vector<double> d(f.hessian.begin(), f.hessian.end());
  std::vector<double> l(n * n);
  for (size_t r = 0; r < n; ++r) {
    for (size_t j = 0; j < n; ++j) {
      l[j * n + r] = r == j ? 1 : static_cast<double>(f.feedback[r * n + j]);
      if (j / 16 <= r / 16) {
        EXPECT_EQ(f.feedback[r * n + j], 0) << r << " " << j;
      }
    }
  }
  for (int side = 0; side < 2; ++side) {
    for (size_t i = 0; i < n; ++i)
      for (size_t k = 0; k < i; ++k)
        for (size_t j = 0; j < n; ++j) d[i * n + j] -= l[i * n + k] * d[k * n + j];
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < i; ++j) std::swap(d[i * n + j], d[j * n + i]);
  }
  double largest = 0, smallest_diagonal = 1e30;
  for (size_t i = 0; i < n; ++i) {
    smallest_diagonal = std::min(smallest_diagonal, d[i * n + i]);
    for (size_t j = 0; j < n; ++j)
      if (i / 16 != j / 16) largest = std::max(largest, std::abs(d[i * n + j]));
  }
  EXPECT_GT(smallest_diagonal, 0);
  EXPECT_LT(largest, 1e-4 * smallest_diagonal);
}

TEST(Exl3Finalise, BitsAreThoseOfOneScalarThread) {
  const Exl3Level before = exl3_level();
  const Exl3Moments m = sampled(384, 500, 3);
  device::Threads one(1), three(3);
  use_exl3_level(Exl3Level::scalar);
  const Exl3Finalised scalar = exl3_finalise("layer", m, 7, one);
  const Exl3Factor expected = exl3_factor("layer", scalar, uneven(scalar), one);
  use_exl3_level(before);
  const Exl3Finalised fast = exl3_finalise("layer", m, 7, three);
  const Exl3Factor f = exl3_factor("layer", fast, uneven(fast), three);
  EXPECT_EQ(f.feedback, expected.feedback);
  EXPECT_EQ(f.hessian, expected.hessian);
}

TEST(Exl3Finalise, DampsAgainWhereTheMomentIsNotPositive) {
  device::Threads threads(1);
  Exl3Moments m;
  m.features = 128;
  m.weight = 2;
  m.sums.resize(128 * 128);
  for (size_t i = 0; i < 128; ++i) m.sums[i * 129] = 2;
  m.sums[1 * 128 + 0] = 2 * 1.04;  // eigenvalue −0.04, +0.025 after damping: once more is enough
  const Exl3Hessian once("layer", m, 7, threads);
  EXPECT_EQ(once.damping_retries(), 1);
  EXPECT_FALSE(once.is_fallback());
  m.sums[1 * 128 + 0] = 2 * 9.0;
  try {
    exl3_finalise("model.layers.3.experts.7.down_proj", m, 7, threads);
    FAIL() << "factored a matrix with the eigenvalue −8";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::failed_check);
    EXPECT_NE(std::string(e.what()).find("experts.7.down_proj"), std::string::npos);
  }
}

TEST(Exl3Finalise, WithoutInputsThereIsNoFeedback) {
  device::Threads threads(1);
  Exl3Moments none;
  none.features = 100;
  none.sums.resize(100 * 100);
  EXPECT_TRUE(Exl3Hessian("layer", none, 7, threads).is_fallback());
  none.weight = 12;  // rows of zeros
  EXPECT_TRUE(Exl3Hessian("layer", none, 7, threads).is_fallback());
  const Exl3Hessian without("layer", 100, 7);
  EXPECT_TRUE(without.is_fallback());
  EXPECT_EQ(without.finalised().padded, 128);
  EXPECT_EQ(without.finalised().signs, Exl3Hessian("layer", none, 7, threads).finalised().signs);
}

TEST(Exl3Finalise, RefusesWhatIsNotASumOfSquares) {
  device::Threads threads(1);
  const auto refused = [&threads](const Exl3Moments& m, const char* text) {
    try {
      exl3_finalise("up_proj", m, 7, threads);
      ADD_FAILURE() << "accepted " << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::failed_check);
      EXPECT_NE(std::string(e.what()).find("up_proj"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  };
  Exl3Moments m = sampled(128, 10, 4);
  m.sums[5 * 128 + 2] = std::nan("");
  refused(m, "nan at [5, 2]");
  m = sampled(128, 10, 4);
  m.sums[5 * 128 + 5] = -1;
  refused(m, "-1 at [5, 5]");
  m = sampled(128, 10, 4);
  m.weight = HUGE_VAL;
  refused(m, "a weight of inf");
  m.sums.pop_back();
  refused(m, "16383 sums");
}

TEST(Exl3Finalise, SignsAreEvenAndApart) {
  const std::vector<float> in = exl3_signs(3, Exl3Side::input, 4096), out = exl3_signs(3, Exl3Side::output, 4096);
  int plus = 0, equal = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_TRUE(in[i] == 1 || in[i] == -1);
    plus += in[i] == 1;
    equal += in[i] == out[i];
  }
  EXPECT_NEAR(plus, 2048, 200);
  EXPECT_NEAR(equal, 2048, 200);
  EXPECT_NE(in, exl3_signs(4, Exl3Side::input, 4096));
  EXPECT_EQ(in, exl3_signs(3, Exl3Side::input, 4096));
}

}  // namespace
}  // namespace tandem::quant::exl3_finalise_test
