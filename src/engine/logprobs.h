// Log-probabilities of one row for the reply (spec/speculation.md 3.7: from the row itself, for kept rows only).
#pragma once

#include <cstdint>
#include <span>

#include "engine/engine.h"

namespace tandem::engine {

// Of `token` and of the `count` (≤ most_logprobs) best: logit − ln Σ e^logit, in float64.
void report_logprobs(std::span<const float> logits, int32_t token, int32_t count, TokenLogprobs& out);

// 1 + the number of tokens whose logit is larger than that of `token`.
int32_t rank_of(std::span<const float> logits, int32_t token);

}  // namespace tandem::engine
