// The router against spec/model.md 5.2.
#include "ops/route/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "ops/test_random.h"

namespace tandem::ops::route_test {
namespace {

using test::Random;

struct Found {
  std::vector<int32_t> chosen;
  std::vector<float> weights, gaps;
};

Found run(std::vector<float> logits, const std::vector<float>& bias, int64_t per_token, float scale, bool normalise) {
  Route a;
  a.experts = static_cast<int64_t>(bias.size());
  a.per_token = per_token;
  a.normalise = normalise;
  a.routed_scaling_factor = scale;
  a.bias = bias.data();
  a.rows = static_cast<int64_t>(logits.size() / bias.size());
  a.logits = logits.data();
  Found found{std::vector<int32_t>(static_cast<size_t>(a.rows * per_token), -1), test::unwritten(a.rows * per_token),
              test::unwritten(a.rows)};
  a.chosen = found.chosen.data();
  a.weights = found.weights.data();
  a.gaps = found.gaps.data();
  route(a);
  a.logits = nullptr;
  return found;
}

TEST(Route, AgainstDouble) {
  Random random(1);
  for (const auto& [experts, per_token] : {std::pair<int64_t, int64_t>{1, 1}, {6, 3}, {8, 8}, {288, 8}, {1024, 17}}) {
    for (const bool normalise : {true, false}) {
      const int64_t rows = 12;
      const std::vector<float> logits = random.normals(rows * experts, 2.0f), bias = random.normals(experts, 0.5f);
      const Found found = run(logits, bias, per_token, 2.5f, normalise);
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<double> score, key;
        for (int64_t e = 0; e < experts; ++e) {
          score.push_back(test::sigmoid(logits[static_cast<size_t>(r * experts + e)]));
          key.push_back(score.back() + bias[static_cast<size_t>(e)]);
        }
        std::vector<int32_t> order(static_cast<size_t>(experts));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return key[static_cast<size_t>(a)] > key[static_cast<size_t>(b)];
        });
        const auto cut = static_cast<size_t>(per_token);
        if (per_token < experts) {
          const double gap = key[static_cast<size_t>(order[cut - 1])] - key[static_cast<size_t>(order[cut])];
          EXPECT_NEAR(found.gaps[static_cast<size_t>(r)], gap, 1e-6);
          if (gap < 1e-6) continue;
        } else {
          EXPECT_EQ(found.gaps[static_cast<size_t>(r)], std::numeric_limits<float>::infinity());
        }
        order.resize(cut);
        std::sort(order.begin(), order.end());
        double sum = 1e-20;
        for (const int32_t e : order) sum += score[static_cast<size_t>(e)];
        for (size_t i = 0; i < cut; ++i) {
          const size_t at = static_cast<size_t>(r) * cut + i;
          EXPECT_EQ(found.chosen[at], order[i]) << experts << " row " << r;
          const double share = score[static_cast<size_t>(order[i])] / (normalise ? sum : 1.0);
          EXPECT_NEAR(found.weights[at], 2.5 * share, 2e-6) << experts << " row " << r;
        }
      }
    }
  }
}

// The bias chooses, the weights do not see it.
TEST(Route, BiasIsForTheChoiceOnly) {
  const Found found = run({4.0f, 3.0f, -2.0f, 0.0f}, {-9.0f, 0.0f, 5.0f, 0.0f}, 2, 1.0f, false);
  EXPECT_EQ(found.chosen, (std::vector<int32_t>{1, 2}));
  EXPECT_NEAR(found.weights[0], test::sigmoid(3.0), 1e-6);
  EXPECT_NEAR(found.weights[1], test::sigmoid(-2.0), 1e-6);
}

TEST(Route, TiesGoToTheLowerExpert) {
  const Found found = run(std::vector<float>(12, 0.25f), std::vector<float>(6, 0.1f), 3, 1.0f, true);
  EXPECT_EQ(found.chosen, (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(found.gaps, (std::vector<float>{0.0f, 0.0f}));
  EXPECT_FLOAT_EQ(found.weights[0], 1.0f / 3.0f);
}

TEST(Route, ChosenAscendWhateverTheirScores) {
  const Found found = run({1.0f, 5.0f, 2.0f, 4.0f, 3.0f}, std::vector<float>(5, 0.0f), 3, 1.0f, true);
  EXPECT_EQ(found.chosen, (std::vector<int32_t>{1, 3, 4}));
  EXPECT_GT(found.weights[0], found.weights[1]);
  EXPECT_GT(found.weights[1], found.weights[2]);
}

// Sigmoids near 1e-37 sum to something the 1e-20 outweighs: weights go to 0, not to NaN.
TEST(Route, TinyScoresDoNotDivideByZero) {
  const Found found = run(std::vector<float>(4, -85.0f), std::vector<float>(4, 0.0f), 2, 2.5f, true);
  for (const float weight : found.weights) {
    EXPECT_TRUE(std::isfinite(weight));
    EXPECT_LT(weight, 1e-15f);
  }
}

TEST(Route, GapsAreOptionalAndTooManyExpertsIsAnError) {
  std::vector<float> logits = {1.0f, 2.0f};
  const std::vector<float> bias(2, 0.0f);
  int32_t chosen = -1;
  float weight = 0.0f;
  Route a;
  a.experts = 2;
  a.per_token = 1;
  a.bias = bias.data();
  a.rows = 1;
  a.logits = logits.data();
  a.chosen = &chosen;
  a.weights = &weight;
  route(a);
  EXPECT_EQ(chosen, 1);
  EXPECT_NEAR(logits[0], test::sigmoid(1.0), 1e-6);  // overwritten by their sigmoid
  a.experts = max_experts + 1;
  EXPECT_THROW(route(a), Error);
}

}  // namespace
}  // namespace tandem::ops::route_test
