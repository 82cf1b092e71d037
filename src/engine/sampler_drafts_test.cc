// Ratio verification keeps the target's distribution: chi-squared over a million samples on tiny vocabularies,
// truncated drafts and filters included (spec/speculation.md 3.4, 8).
#include <cmath>
#include <numeric>

#include "engine/sampler.h"

namespace tandem::engine::sampler_drafts_test {
namespace {

constexpr int32_t vocabulary = 24;
constexpr AllowedTokens all{vocabulary, {}};

std::vector<float> row(uint64_t seed, double spread) {
  std::vector<float> logits;
  for (int32_t id = 0; id < vocabulary; ++id) logits.push_back(static_cast<float>(keyed_uniform(seed, 0, id) * spread));
  return logits;
}

// p after temperature and filters, written down plainly.
std::vector<double> distribution(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  std::vector<double> p(logits.size());
  const auto mass = [&](int32_t id) {
    return std::exp(static_cast<double>(logits[static_cast<size_t>(id)] - logits[static_cast<size_t>(order[0])]) /
                    params.temperature);
  };
  if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
  double total = 0, sum = 0;
  for (const int32_t id : order) total += mass(id);
  for (const int32_t id : order) {
    if (mass(id) < params.min_p) break;
    p[static_cast<size_t>(id)] = mass(id);
    sum += mass(id);
    if (sum >= params.top_p * total) break;
  }
  const double norm = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= norm;
  return p;
}

// Chi-squared of counts against p; tokens with p = 0 must not occur. The bound is far beyond the 1e-6 quantile.
void expect_distributed(const std::vector<int64_t>& counts, const std::vector<double>& p, const std::string& what) {
  const auto n = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double chi = 0, degrees = -1;
  for (size_t id = 0; id < p.size(); ++id) {
    if (p[id] == 0) {
      EXPECT_EQ(counts[id], 0) << what << ": token " << id;
      continue;
    }
    const double expected = n * p[id];
    chi += (static_cast<double>(counts[id]) - expected) * (static_cast<double>(counts[id]) - expected) / expected;
    ++degrees;
  }
  EXPECT_LT(chi, degrees + 5 * std::sqrt(2 * degrees) + 10) << what;
}

struct Case {
  const char* name;
  SamplingParams target, draft;
  bool draws;
};

class RatioVerification : public ::testing::TestWithParam<Case> {};

TEST_P(RatioVerification, KeepsTheDistribution) {
  const Case& c = GetParam();
  const auto target = row(1, 6), drafts = row(2, 6);
  const auto p = distribution(target, c.target);
  Sampler sampler(vocabulary);
  std::vector<int64_t> counts(vocabulary);
  int64_t accepted = 0;
  constexpr int64_t samples = 1'000'000;
  for (int64_t i = 0; i < samples; ++i) {
    SamplingParams params = c.target, own = c.draft;
    params.seed = own.seed = static_cast<uint64_t>(i / 1000);
    draft::DraftDistribution q;
    const int32_t draft =
        c.draws ? sampler.draw_draft(drafts, own, i, all, q).token : sampler.pick(drafts, own, i, all).token;
    if (!c.draws) q.size = 0;
    const RatioChoice choice = sampler.verify_ratio(target, params, i, all, draft, q);
    if (choice.accepted) {
      ASSERT_EQ(choice.token, draft);
    }
    accepted += choice.accepted ? 1 : 0;
    ++counts[static_cast<size_t>(choice.token)];
  }
  expect_distributed(counts, p, c.name);
  // Accepted as often as 3.4 says: Σ min(p, q).
  double expected = 0;
  if (c.draws) {
    auto q = distribution(drafts, c.draft);
    std::vector<double> sorted = q;
    std::sort(sorted.rbegin(), sorted.rend());
    const double smallest = sorted[draft::DraftDistribution::most - 1];
    double norm = 0;
    for (double& x : q) norm += x = x >= smallest ? x : 0;
    for (size_t id = 0; id < p.size(); ++id) expected += std::min(p[id], q[id] / norm);
    EXPECT_NEAR(static_cast<double>(accepted) / samples, expected, 0.003) << c.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RatioVerification,
    ::testing::Values(
        Case{"drawn, no filters", {.temperature = 1.0}, {.temperature = 1.0}, true},
        Case{"drawn, other temperatures", {.temperature = 0.7}, {.temperature = 1.5}, true},
        Case{"filtered target", {.temperature = 1.0, .top_k = 9, .top_p = 0.9}, {.temperature = 1.0}, true},
        Case{"both filtered",
             {.temperature = 1.0, .top_p = 0.8, .min_p = 0.05},
             {.temperature = 1.0, .top_p = 0.8, .min_p = 0.05},
             true},
        Case{"greedy drafts", {.temperature = 1.0}, {.temperature = 0.0}, false},
        Case{"drafts of the request's own noise", {.temperature = 1.3}, {.temperature = 1.3}, false}),
    [](const auto& one) {
      std::string name = one.param.name;
      std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
      return name;
    });

TEST(RatioVerification, GreedyRequestsAreVerifiedExactly) {
  Sampler sampler(vocabulary);
  const auto logits = row(3, 6);
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  for (int32_t draft = 0; draft < vocabulary; ++draft) {
    const RatioChoice choice = sampler.verify_ratio(logits, {.temperature = 0}, 5, all, draft, {});
    EXPECT_EQ(choice.token, best);
    EXPECT_EQ(choice.accepted, draft == best);
  }
}

TEST(RatioVerification, DisjointSupportsAlwaysReject) {
  Sampler sampler(vocabulary);
  auto logits = row(3, 6);
  draft::DraftDistribution q;
  q.size = 1;
  q.ids[0] = 4;
  q.probabilities[0] = 1;
  logits[4] = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < 1000; ++i) {
    const RatioChoice choice = sampler.verify_ratio(logits, {.temperature = 1}, i, all, 4, q);
    EXPECT_FALSE(choice.accepted);
    EXPECT_NE(choice.token, 4);
  }
}

TEST(Pick, ProbabilityIsTheShareOfTheToken) {
  Sampler sampler(vocabulary);
  const auto logits = row(8, 4);
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 1.0}, SamplingParams{.temperature = 0.6, .top_k = 5},
        SamplingParams{.temperature = 0}}) {
    auto at_one = params;
    if (params.temperature == 0) at_one.temperature = 1;
    const auto p = distribution(logits, at_one);
    for (int64_t i = 0; i < 50; ++i) {
      const Picked picked = sampler.pick(logits, params, i, all);
      EXPECT_EQ(picked.token, sampler.select(logits, params, i, all));
      EXPECT_NEAR(picked.probability, p[static_cast<size_t>(picked.token)], 1e-9);
    }
  }
}

}  // namespace
}  // namespace tandem::engine::sampler_drafts_test
