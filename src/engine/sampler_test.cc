// The sampler against the check values of spec/speculation.md 3.5, against libm, against softmax by frequency, and at
// its edges.
#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "base/portable_math.h"

namespace tandem::engine::sampler_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

SamplingParams params(double temperature, int32_t top_k = 0, double top_p = 1.0, double min_p = 0.0,
                      uint64_t seed = 0) {
  return {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p, .seed = seed};
}

int32_t choose(const std::vector<float>& logits, const SamplingParams& p, int64_t position = 0,
               std::vector<int32_t> masked = {}, int32_t size = -1) {
  Sampler sampler(static_cast<int32_t>(logits.size()));
  return sampler.select(logits, p, position, {size < 0 ? static_cast<int32_t>(logits.size()) : size, masked});
}

// Every token that comes up over many positions.
std::set<int32_t> support(const std::vector<float>& logits, const SamplingParams& p, int positions = 3000) {
  Sampler sampler(static_cast<int32_t>(logits.size()));
  std::set<int32_t> seen;
  for (int i = 0; i < positions; ++i)
    seen.insert(sampler.select(logits, p, i, {static_cast<int32_t>(logits.size()), {}}));
  return seen;
}

std::vector<float> log_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

int64_t units_apart(double a, double b) { return std::abs(std::bit_cast<int64_t>(a) - std::bit_cast<int64_t>(b)); }

TEST(PortableMath, ExpAndLogAgreeWithLibm) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> negative(-700.0, 0.0), small(-1.0, 0.0), unit(0.0, 1.0), wide(-300.0, 300.0);
  for (int i = 0; i < 200000; ++i) {
    for (const double x : {negative(random), small(random)})
      ASSERT_LE(units_apart(portable_exp(x), std::exp(x)), 2) << x;
    for (const double x : {unit(random) + 1e-300, 1.0 - unit(random) * 1e-9, std::exp(wide(random))})
      ASSERT_LE(units_apart(portable_log(x), std::log(x)), 2) << x;
  }
  EXPECT_EQ(portable_exp(0.0), 1.0);
  EXPECT_EQ(portable_exp(-1e300), 0.0);
  EXPECT_EQ(portable_exp(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(portable_log(1.0), 0.0);
  EXPECT_EQ(portable_log(1.0 - 0x1p-53), -0x1p-53);
}

TEST(Sampler, KeyedUniformHasTheCheckValues) {
  EXPECT_EQ(keyed_uniform(0, 0, 0), 0.20310281705476102);
  EXPECT_EQ(keyed_uniform(1, 100, 42), 0.461418722073865);
  EXPECT_EQ(keyed_uniform(1234567890123, 2051, 154856), 0.46842210338685025);
}

TEST(Sampler, GreedyTakesTheLargestAndTheSmallerIdOfATie) {
  EXPECT_EQ(choose({1, 3, 2}, params(0)), 1);
  EXPECT_EQ(choose({1, 3, 3, 3}, params(0)), 1);
  EXPECT_EQ(choose({-0.0f, 0.0f}, params(0)), 0);
  EXPECT_EQ(choose({1, 3, 2}, params(0.99e-5, 1, 0.1, 0.9)), 1);  // below 1e-5
  EXPECT_EQ(choose({1, 3, 3, 3}, params(0), 0, {1}), 2);
  EXPECT_EQ(choose({1, 3, 2, 9}, params(0), 0, {}, 3), 1);  // id 3 has no text
  EXPECT_EQ(choose({1, 3}, params(0), 0, {-1, 7, 1}), 0);   // masked ids outside the row are ignored
}

// χ² over `positions` draws against expected probabilities; 0.999 quantiles for 1..9 degrees of freedom.
double chi_square(const std::vector<float>& logits, const SamplingParams& p, const std::vector<double>& expected,
                  int positions) {
  Sampler sampler(static_cast<int32_t>(logits.size()));
  std::vector<double> count(logits.size());
  for (int i = 0; i < positions; ++i)
    count[static_cast<size_t>(sampler.select(logits, p, i, {static_cast<int32_t>(logits.size()), {}}))] += 1;
  double sum = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(count[i], 0) << "token " << i << " was filtered";
      continue;
    }
    const double mean = expected[i] * positions;
    sum += (count[i] - mean) * (count[i] - mean) / mean;
  }
  return sum;
}

constexpr std::array<double, 10> quantile_999 = {0, 10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32, 26.12, 27.88};

TEST(Sampler, GreedyWithAndWithoutMasksIsTheFirstLargest) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> logits(1 + random() % 70);
    for (float& x : logits) x = random() % 8 == 0 ? -infinity : static_cast<float>(random() % 5) - 2.0f;  // many ties
    const auto size = static_cast<int32_t>(1 + random() % logits.size());
    int32_t first = -1;
    for (int32_t i = 0; i < size; ++i) {
      const float x = logits[static_cast<size_t>(i)];
      if (x > -infinity && (first < 0 || x > logits[static_cast<size_t>(first)])) first = i;
    }
    if (first < 0) {
      EXPECT_THROW(choose(logits, params(0), 0, {}, size), Error);
      continue;
    }
    ASSERT_EQ(choose(logits, params(0), 0, {}, size), first);
    ASSERT_EQ(choose(logits, params(0), 0, {size}, size), first);  // a mask that masks nothing: the other way
  }
}

TEST(Sampler, DrawsFromTheSoftmax) {
  const std::vector<double> probabilities = {0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.01, 0.01};
  for (const uint64_t seed : {0ULL, 7ULL, 0xffffffffffffffffULL})
    EXPECT_LT(chi_square(log_of(probabilities), params(1, 0, 1, 0, seed), probabilities, 200000), quantile_999[7]);
}

TEST(Sampler, DrawsFromTheTemperedAndFilteredSoftmax) {
  // Squares of the probabilities at T = 0.5; top_k 4 keeps {0..3}.
  std::vector<double> expected = {0.25, 0.04, 0.01, 0.01, 0, 0, 0, 0};
  for (double& e : expected) e /= 0.31;
  const auto logits = log_of({0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.01, 0.01});
  EXPECT_LT(chi_square(logits, params(0.5, 4), expected, 200000), quantile_999[3]);
}

TEST(Sampler, NoiseOfOnePositionDoesNotTellTheNext) {
  // Two equally likely tokens: the four pairs (this, next) are equally likely.
  Sampler sampler(2);
  const std::vector<float> logits = {0, 0};
  std::array<double, 4> count{};
  int32_t last = 0;
  constexpr int draws = 100000;
  for (int i = 0; i < draws; ++i) {
    const int32_t token = sampler.select(logits, params(1), i, {2, {}});
    if (i > 0) count[static_cast<size_t>(last) * 2 + static_cast<size_t>(token)] += 1;
    last = token;
  }
  double sum = 0;
  for (const double c : count) sum += (c - draws / 4.0) * (c - draws / 4.0) / (draws / 4.0);
  EXPECT_LT(sum, quantile_999[3]);
}

TEST(Sampler, TopKKeepsTheFirstByValueThenId) {
  EXPECT_EQ(support({1, 1, 1, 1, 0}, params(1, 2)), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(support({0, 1, 1, 1, 1}, params(1, 3)), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(support({0, 0.1f, 0.2f}, params(1, 1)), (std::set<int32_t>{2}));
  EXPECT_EQ(support({0, 0.1f, 0.2f}, params(1, 3)).size(), 3u);
  EXPECT_EQ(support({0, 0.1f, 0.2f}, params(1, 99)).size(), 3u);
  EXPECT_EQ(support({0, 0.1f, 0.2f}, params(1, -1)).size(), 3u);
}

TEST(Sampler, TopPKeepsTheCrossingToken) {
  const auto logits = log_of({0.5, 0.3, 0.15, 0.05});
  EXPECT_EQ(support(logits, params(1, 0, 0.49)), (std::set<int32_t>{0}));
  EXPECT_EQ(support(logits, params(1, 0, 0.51)), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(support(logits, params(1, 0, 0.79)), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(support(logits, params(1, 0, 0.81)), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(support(logits, params(1, 0, 1e-300)), (std::set<int32_t>{0}));
  EXPECT_EQ(support(logits, params(1, 0, 1.0)).size(), 4u);
  EXPECT_EQ(support({0, 0, 0, 0}, params(1, 0, 0.5)),
            (std::set<int32_t>{0, 1}));  // exactly reached: equal masses, ties by id
  EXPECT_EQ(support({0, 0, 0, 0}, params(1, 0, 0.500001)), (std::set<int32_t>{0, 1, 2}));
}

TEST(Sampler, TopPMassIsThatOfTheTopKSet) {
  // Of {0.4, 0.3, 0.2, 0.1} top_k 2 leaves 4/7 and 3/7: 0.55 of that closes at the first token, 0.6 needs both.
  const auto logits = log_of({0.4, 0.3, 0.2, 0.1});
  EXPECT_EQ(support(logits, params(1, 2, 0.55)), (std::set<int32_t>{0}));
  EXPECT_EQ(support(logits, params(1, 0, 0.55)), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(support(logits, params(1, 2, 0.6)), (std::set<int32_t>{0, 1}));
}

TEST(Sampler, TemperatureComesBeforeTopP) {
  // At T = 0.25 the probabilities are p^4: the first token holds 0.97 of them.
  const auto logits = log_of({0.5, 0.2, 0.2, 0.1});
  EXPECT_EQ(support(logits, params(0.25, 0, 0.9)), (std::set<int32_t>{0}));
  EXPECT_EQ(support(logits, params(1, 0, 0.9)).size(), 3u);
}

TEST(Sampler, MinPIsRelativeToTheMostLikely) {
  const auto logits = log_of({0.5, 0.3, 0.15, 0.05});
  EXPECT_EQ(support(logits, params(1, 0, 1, 0.61)), (std::set<int32_t>{0}));
  EXPECT_EQ(support(logits, params(1, 0, 1, 0.59)), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(support(logits, params(1, 0, 1, 0.29)), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(support(logits, params(1, 0, 1, 1.0)), (std::set<int32_t>{0}));
  EXPECT_EQ(support({1, 1, 0}, params(1, 0, 1, 1.0)), (std::set<int32_t>{0, 1}));
  // After top_p: min_p looks at the largest of the row, not at what a filter left, so it can only shrink the nucleus.
  EXPECT_EQ(support(logits, params(1, 0, 0.9, 0.59)), (std::set<int32_t>{0, 1}));
  // At T = 2 the ratios are square roots: 0.3/0.5 -> 0.77.
  EXPECT_EQ(support(logits, params(2, 0, 1, 0.7)), (std::set<int32_t>{0, 1}));
}

TEST(Sampler, ExtremeRows) {
  EXPECT_EQ(choose({-infinity, -infinity, -3, -infinity}, params(1)), 2);
  EXPECT_EQ(choose({-infinity, -infinity, -3, -infinity}, params(0)), 2);
  const float huge = std::numeric_limits<float>::max();
  // The noise vanishes in the sum with such a logit: the tie goes to the smaller id.
  EXPECT_EQ(support({-huge, huge, huge, 0}, params(1, 0, 0.95)), (std::set<int32_t>{1}));
  EXPECT_EQ(support({-huge, huge, huge, 0}, params(1.0001e-5, 0, 0.95, 0.1)), (std::set<int32_t>{1}));
  EXPECT_EQ(support({-infinity, -huge, -huge}, params(1e-5)), (std::set<int32_t>{1}));
  EXPECT_EQ(support({1e6f, 1e6f, -1e6f}, params(1)), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(support({1.0f, 1.001f}, params(1.01e-5)), (std::set<int32_t>{1}));
  EXPECT_EQ(support({1, 5, 2}, params(1e300)).size(), 3u);
}

TEST(Sampler, MasksHoldForEverySamplingRule) {
  const std::vector<float> logits = {9, 8, 1, 1, 50};
  for (const auto& p : {params(1), params(1, 2), params(1, 0, 0.9), params(1, 0, 1, 0.5)})
    for (int position = 0; position < 200; ++position) {
      const int32_t token = choose(logits, p, position, {0, 1}, 4);
      EXPECT_TRUE(token == 2 || token == 3) << token;
    }
}

TEST(Sampler, BrokenRowsAreInternalErrors) {
  const auto code_of = [](const std::vector<float>& row, std::vector<int32_t> masked = {}, int32_t size = -1) {
    try {
      choose(row, params(1), 0, std::move(masked), size);
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::usage;
  };
  EXPECT_EQ(code_of({0, std::nanf(""), 1}), ErrorCode::internal);
  EXPECT_EQ(code_of({0, 1, std::nanf("")}, {}, 2), ErrorCode::internal);  // a padding row of the head is checked too
  EXPECT_EQ(code_of({0, infinity}), ErrorCode::internal);
  EXPECT_EQ(code_of({-infinity, -infinity}), ErrorCode::internal);
  EXPECT_EQ(code_of({0, 1}, {0, 1}), ErrorCode::internal);
  EXPECT_EQ(code_of({0, 1}, {}, 0), ErrorCode::internal);
  Sampler sampler(3);
  EXPECT_THROW(sampler.select(std::vector<float>{1, 2}, params(0), 0, {3, {}}), Error);
}

// The definition, word for word: sort everything, then filter.
int32_t reference(const std::vector<float>& logits, const SamplingParams& p, int64_t position) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto at = [&](int32_t id) { return static_cast<double>(logits[static_cast<size_t>(id)]) / p.temperature; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return at(a) > at(b); });
  const double largest = at(order[0]);
  if (p.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(p.top_k)));
  const auto mass = [&](int32_t id) { return static_cast<uint64_t>(0x1p40 * portable_exp(at(id) - largest)); };
  if (p.top_p < 1) {
    uint64_t total = 0, sum = 0;
    for (const int32_t id : order) total += mass(id);
    const auto enough = std::min(total, static_cast<uint64_t>(std::ceil(p.top_p * static_cast<double>(total))));
    size_t kept = 0;
    while (kept < order.size() && sum < enough) sum += mass(order[kept++]);
    order.resize(kept);
  }
  if (p.min_p > 0) std::erase_if(order, [&](int32_t id) { return at(id) < largest + portable_log(p.min_p); });
  int32_t winner = -1;
  double best = -std::numeric_limits<double>::infinity();
  for (const int32_t id : order) {
    const double score = at(id) - portable_log(-portable_log(keyed_uniform(p.seed, position, id)));
    if (score > best) {
      best = score;
      winner = id;
    }
  }
  return winner;
}

TEST(Sampler, PartialSortingEqualsTheDefinitionOnAWholeVocabulary) {
  constexpr int32_t vocabulary = 154880;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(vocabulary);
  // Rounded to 1/16, so that there are many ties at every cut.
  for (float& l : logits) l = std::round(normal(random) * 16.0f) / 16.0f;
  Sampler sampler(vocabulary);
  const AllowedTokens all{vocabulary, {}};
  for (const auto& p :
       {params(1, 0, 1, 0, 1), params(1, 50, 1, 0, 2), params(1, 1000, 0.9, 0, 3), params(1, 0, 0.3, 0, 4),
        params(1, 0, 0.999, 0, 5), params(0.7, 40, 0.95, 0.05, 6), params(3, 0, 0.99999, 0, 7)})
    for (int position = 0; position < 2; ++position)
      EXPECT_EQ(sampler.select(logits, p, position, all), reference(logits, p, position)) << p.seed << " " << position;
}

TEST(Sampler, SameInputsSameTokenAndTheSeedMatters) {
  std::vector<float> logits(500);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 17) * 0.1f;
  Sampler one(500), other(500);
  int differences = 0;
  for (int position = 0; position < 500; ++position) {
    const auto p = params(1, 0, 0.9, 0, 42);
    const int32_t token = one.select(logits, p, position, {500, {}});
    (void)other.select(logits, params(0.3, 7), position + 1, {400, {}});  // what a sampler did before leaves no trace
    EXPECT_EQ(other.select(logits, p, position, {500, {}}), token);
    differences += one.select(logits, params(1, 0, 0.9, 0, 43), position, {500, {}}) != token;
  }
  EXPECT_GT(differences, 450);
}

}  // namespace
}  // namespace tandem::engine::sampler_test
