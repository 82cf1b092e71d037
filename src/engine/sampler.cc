// The sampler's filters over a candidate list; only as much of the list is sorted as a filter needs.
#include "engine/sampler.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/keyed_noise.h"
#include "base/portable_math.h"

namespace tandem::engine {
namespace {

// Larger than any −ln(−ln u): u <= 1 − 2^-53 gives 36.74.
constexpr double largest_noise = 36.75;

constexpr double mass_one = 0x1p40;  // integer mass of the most likely token

uint64_t mass_of(double x, double largest) { return static_cast<uint64_t>(mass_one * portable_exp(x - largest)); }

}  // namespace

Sampler::Sampler(int32_t vocab_size) : is_masked_(static_cast<size_t>(vocab_size)) {
  candidates_.reserve(static_cast<size_t>(vocab_size));
  probabilities_.reserve(static_cast<size_t>(vocab_size));
  residual_.reserve(static_cast<size_t>(vocab_size));
}

bool Sampler::before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The id of the largest of the first `size` logits, ties to the smaller id, in two passes that the compiler turns into
// vector code; −1 if a logit of the row is no number or +inf, or if all of them are −inf.
int32_t Sampler::largest_of(std::span<const float> logits, int64_t size) {
  constexpr int64_t lanes = 16;
  const auto n = static_cast<int64_t>(logits.size());
  constexpr float infinity = std::numeric_limits<float>::infinity();
  float best[lanes];
  int32_t bad[lanes] = {};
  std::fill_n(best, lanes, -infinity);
  const auto look = [&](int64_t i, int64_t lane) {
    const float x = logits[static_cast<size_t>(i)];
    bad[lane] |= x < infinity ? 0 : 1;
    const float allowed = i < size ? x : -infinity;
    best[lane] = allowed > best[lane] ? allowed : best[lane];
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane) look(i + lane, lane);
  }
  for (; i < n; ++i) look(i, 0);
  const float largest = *std::max_element(best, best + lanes);
  if (largest == -infinity || std::any_of(bad, bad + lanes, [](int32_t b) { return b != 0; })) return -1;
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
}

void Sampler::collect(std::span<const float> logits, const AllowedTokens& allowed) {
  if (logits.size() != is_masked_.size())
    throw Error(ErrorCode::internal, "sampler", fmt::format("a row of {} logits", logits.size()),
                fmt::format("{}", is_masked_.size()));
  const auto size = std::min<int64_t>(allowed.size, std::ssize(logits));
  std::fill(is_masked_.begin(), is_masked_.end(), uint8_t{0});
  for (const int32_t id : allowed.masked)
    if (id >= 0 && id < size) is_masked_[static_cast<size_t>(id)] = 1;

  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (!(logit < std::numeric_limits<float>::infinity()))
      throw Error(ErrorCode::internal, "sampler", fmt::format("the logit of token {} is {}", i, logit),
                  "a finite number");
    if (static_cast<int64_t>(i) >= size || is_masked_[i] != 0 || std::isinf(logit)) continue;
    candidates_.push_back({logit, static_cast<int32_t>(i)});
  }
  if (candidates_.empty())
    throw Error(ErrorCode::internal, "sampler", "every token is masked", "at least one allowed token");
  best_ = *std::min_element(candidates_.begin(), candidates_.end(), before);
}

void Sampler::keep_top_k(int64_t count) {
  if (count <= 0 || count >= std::ssize(candidates_)) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + (count - 1), candidates_.end(), before);
  candidates_.resize(static_cast<size_t>(count));
}

void Sampler::keep_top_p(double top_p, double temperature) {
  if (top_p >= 1.0) return;
  const double largest = static_cast<double>(best_.logit) / temperature;
  uint64_t total = 0;
  for (const Candidate& c : candidates_) total += mass_of(static_cast<double>(c.logit) / temperature, largest);
  // At least 1: a nucleus is never empty. At most total: the product may round up.
  const auto wanted = static_cast<uint64_t>(std::max(1.0, std::ceil(top_p * static_cast<double>(total))));
  const uint64_t enough = std::min(wanted, total);

  // The nucleus is usually a few tokens: sort 256, and only if it does not close inside them the next, larger stretch.
  uint64_t mass = 0;
  int64_t sorted = 0;
  for (int64_t stretch = 256; sorted < std::ssize(candidates_); stretch *= 4) {
    const auto begin = candidates_.begin() + sorted;
    const auto end = candidates_.begin() + std::min(sorted + stretch, static_cast<int64_t>(std::ssize(candidates_)));
    if (end != candidates_.end()) std::nth_element(begin, end - 1, candidates_.end(), before);
    std::sort(begin, end, before);
    for (auto c = begin; c != end; ++c) {
      mass += mass_of(static_cast<double>(c->logit) / temperature, largest);
      if (mass < enough) continue;
      candidates_.erase(c + 1, candidates_.end());
      return;
    }
    sorted = end - candidates_.begin();
  }
}

int32_t Sampler::argmax_with_noise(const SamplingParams& params, int64_t position) const {
  const double largest = static_cast<double>(best_.logit) / params.temperature;
  const double smallest =
      params.min_p > 0.0 ? largest + portable_log(params.min_p) : -std::numeric_limits<double>::infinity();
  Candidate winner{0.0f, -1};
  double winner_score = -std::numeric_limits<double>::infinity();
  for (const Candidate& c : candidates_) {
    const double x = static_cast<double>(c.logit) / params.temperature;
    // best_ passes min_p even where rounding says otherwise. The second test only saves time: no noise can lift such a
    // token.
    if ((x < smallest && c.id != best_.id) || x + largest_noise < winner_score) continue;
    const double score = x + keyed_gumbel(params.seed, position, c.id);
    if (winner.id >= 0 && (score < winner_score || (score == winner_score && before(winner, c)))) continue;
    winner = c;
    winner_score = score;
  }
  return winner.id;
}

int32_t Sampler::select(std::span<const float> logits, const SamplingParams& params, int64_t position,
                        const AllowedTokens& allowed) {
  if (params.temperature < greedy_temperature && allowed.masked.empty() && logits.size() == is_masked_.size()) {
    const int32_t id = largest_of(logits, allowed.size);
    if (id >= 0) return id;  // else the way below says what is wrong
  }
  collect(logits, allowed);
  if (params.temperature < greedy_temperature) return best_.id;
  keep_top_k(params.top_k);
  keep_top_p(params.top_p, params.temperature);
  return argmax_with_noise(params, position);
}

}  // namespace tandem::engine
