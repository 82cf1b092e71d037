// The sampler's part in drafting: probabilities of a row, draws for drafts, the ratio rule (spec/speculation.md 3.4).
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/portable_math.h"
#include "engine/sampler.h"

namespace tandem::engine {
namespace {

// Seeds of noise that must have nothing to do with the request's own, nor with each other.
constexpr uint64_t draft_noise = 0xA24BAED4963EE407ULL, accept_noise = 0x9FB21C651E98DF25ULL,
                   residual_noise = 0xD6E8FEB86659FD93ULL;

}  // namespace

void Sampler::keep_min_p(double min_p, double temperature) {
  if (min_p <= 0.0) return;
  const double smallest = static_cast<double>(best_.logit) / temperature + portable_log(min_p);
  std::erase_if(candidates_, [&](const Candidate& c) {
    return static_cast<double>(c.logit) / temperature < smallest && c.id != best_.id;
  });
}

void Sampler::make_distribution(std::span<const float> logits, const SamplingParams& params,
                                const AllowedTokens& allowed) {
  collect(logits, allowed);
  const auto all = candidates_.size();
  keep_top_k(params.top_k);
  keep_top_p(params.top_p, params.temperature);
  keep_min_p(params.min_p, params.temperature);
  if (candidates_.size() < all)  // sums must not depend on how a library partitions
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const double largest = static_cast<double>(best_.logit) / params.temperature;
  double sum = 0;
  probabilities_.clear();
  for (const Candidate& c : candidates_) {
    probabilities_.push_back(portable_exp(static_cast<double>(c.logit) / params.temperature - largest));
    sum += probabilities_.back();
  }
  for (double& p : probabilities_) p /= sum;
}

int32_t Sampler::draw(std::span<const double> weights, uint64_t seed, int64_t position) const {
  int32_t winner = -1;
  double winner_score = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (!(weights[i] >= std::numeric_limits<double>::min())) continue;
    const double score = portable_log(weights[i]) + keyed_gumbel(seed, position, candidates_[i].id);
    if (winner >= 0 && score <= winner_score) continue;
    winner = candidates_[i].id;
    winner_score = score;
  }
  return winner;
}

Picked Sampler::pick(std::span<const float> logits, const SamplingParams& params, int64_t position,
                     const AllowedTokens& allowed) {
  const int32_t token = select(logits, params, position, allowed);
  const bool is_greedy = params.temperature < greedy_temperature;
  const double temperature = is_greedy ? 1.0 : params.temperature;
  const double own = static_cast<double>(logits[static_cast<size_t>(token)]) / temperature;
  double sum = 0;  // relative to the token itself, which need not be the best
  const auto add = [&](float logit) {
    sum += std::exp(std::min(700.0, static_cast<double>(logit) / temperature - own));
  };
  if (is_greedy) {
    for (const float logit : logits.first(static_cast<size_t>(std::min<int64_t>(allowed.size, std::ssize(logits)))))
      add(logit);
  } else {
    for (const Candidate& c : candidates_) add(c.logit);
  }
  return {token, 1.0 / sum};
}

Picked Sampler::draw_draft(std::span<const float> logits, const SamplingParams& params, int64_t position,
                           const AllowedTokens& allowed, draft::DraftDistribution& drawn_from) {
  drawn_from.size = 0;
  if (params.temperature < greedy_temperature) return pick(logits, params, position, allowed);
  make_distribution(logits, params, allowed);
  if (candidates_.size() > draft::DraftDistribution::most) {
    const auto end = candidates_.begin() + draft::DraftDistribution::most;
    std::nth_element(candidates_.begin(), end - 1, candidates_.end(), before);
    candidates_.erase(end, candidates_.end());
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    const double largest = static_cast<double>(best_.logit) / params.temperature;
    probabilities_.clear();
    double sum = 0;
    for (const Candidate& c : candidates_) {
      probabilities_.push_back(portable_exp(static_cast<double>(c.logit) / params.temperature - largest));
      sum += probabilities_.back();
    }
    for (double& p : probabilities_) p /= sum;
  }
  const int32_t token = draw(probabilities_, params.seed ^ draft_noise, position);
  Picked picked{token, 1};
  drawn_from.size = static_cast<int32_t>(candidates_.size());
  for (size_t i = 0; i < candidates_.size(); ++i) {
    drawn_from.ids[i] = candidates_[i].id;
    drawn_from.probabilities[i] = probabilities_[i];
    if (candidates_[i].id == token) picked.probability = probabilities_[i];
  }
  return picked;
}

RatioChoice Sampler::verify_ratio(std::span<const float> logits, const SamplingParams& params, int64_t position,
                                  const AllowedTokens& allowed, int32_t draft,
                                  const draft::DraftDistribution& drawn_from) {
  if (params.temperature < greedy_temperature) {
    const int32_t token = select(logits, params, position, allowed);
    return {token, token == draft};
  }
  make_distribution(logits, params, allowed);
  residual_.assign(probabilities_.begin(), probabilities_.end());
  const auto take = [&](int32_t id, double q) {  // returns p
    const auto found = std::lower_bound(candidates_.begin(), candidates_.end(), id,
                                        [](const Candidate& c, int32_t wanted) { return c.id < wanted; });
    if (found == candidates_.end() || found->id != id) return 0.0;
    double& rest = residual_[static_cast<size_t>(found - candidates_.begin())];
    const double p = rest;
    rest = std::max(0.0, rest - q);
    return p;
  };
  double p_of_draft = 0, q_of_draft = drawn_from.size == 0 ? 1.0 : 0.0;
  if (drawn_from.size == 0) p_of_draft = take(draft, 1.0);
  for (int32_t i = 0; i < drawn_from.size; ++i) {
    const auto at = static_cast<size_t>(i);
    const double p = take(drawn_from.ids[at], drawn_from.probabilities[at]);
    if (drawn_from.ids[at] != draft) continue;
    p_of_draft = p;
    q_of_draft = drawn_from.probabilities[at];
  }
  if (keyed_uniform(params.seed ^ accept_noise, position, 0) * q_of_draft < p_of_draft) return {draft, true};
  int32_t token = draw(residual_, params.seed ^ residual_noise, position);
  if (token < 0) token = draw(probabilities_, params.seed ^ residual_noise, position);
  return {token, false};
}

}  // namespace tandem::engine
