// The rule of rests and trials.
#include "draft/plain_rounds.h"

#include <numeric>

namespace tandem::draft {

void PlainRounds::add(double tokens, double ms, double plain_ms) {
  const double gain = tokens * plain_ms - ms;
  gains_[static_cast<size_t>(rounds_++ % remembered)] = gain;
  if (trial_) {
    if (gain < 0) return rest();
    trial_ = false;
    next_rest_ = first_rest;
    return;
  }
  const int32_t count = std::min(rounds_, remembered);
  if (count >= judged && std::accumulate(gains_.begin(), gains_.begin() + count, 0.0) < 0) rest();
}

void PlainRounds::rest() {
  rest_ = next_rest_;
  next_rest_ = std::min(2 * next_rest_, longest_rest);
  rounds_ = 0;
  trial_ = true;
}

}  // namespace tandem::draft
