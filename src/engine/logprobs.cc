// One pass for the sum, one for the best.
#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>

namespace tandem::engine {

void report_logprobs(std::span<const float> logits, int32_t token, int32_t count, TokenLogprobs& out) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - static_cast<double>(largest));
  const double log_sum = static_cast<double>(largest) + std::log(sum);
  const auto log_of = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - log_sum); };
  out.chosen = log_of(logits[static_cast<size_t>(token)]);
  out.size = 0;
  const int32_t most = std::min({count, most_logprobs, static_cast<int32_t>(logits.size())});
  if (most <= 0) return;
  for (int32_t id = 0; id < std::ssize(logits); ++id) {
    const float logit = logits[static_cast<size_t>(id)];
    if (out.size == most && !(logit > out.best[static_cast<size_t>(most - 1)].second)) continue;
    int32_t at = std::min(out.size, most - 1);
    for (; at > 0 && out.best[static_cast<size_t>(at - 1)].second < logit; --at)
      out.best[static_cast<size_t>(at)] = out.best[static_cast<size_t>(at - 1)];
    out.best[static_cast<size_t>(at)] = {id, logit};
    out.size = std::min(out.size + 1, most);
  }
  for (int32_t i = 0; i < out.size; ++i) {
    auto& logit = out.best[static_cast<size_t>(i)].second;
    logit = log_of(logit);
  }
}

int32_t rank_of(std::span<const float> logits, int32_t token) {
  const float own = logits[static_cast<size_t>(token)];
  return 1 + static_cast<int32_t>(std::count_if(logits.begin(), logits.end(), [own](float l) { return l > own; }));
}

}  // namespace tandem::engine
