// Whether a model that chooses tokens in its steps chooses what the host would: asked of every start on a GPU, so that
// a driver or a compiler that rounds otherwise shows itself before the first request.
#pragma once

#include "engine/step_runner.h"

namespace tandem::engine {

// Runs a few rows in slot 0 and page 1, first for their logits, then for tokens under settings of every kind, and
// compares each token with the host sampler's. `sampled_tokens`: ids from there on are never chosen. Returns how many
// were compared. Throws Error(failed_check) naming row and settings, and what the runner throws.
int64_t check_sampling(StepRunner& runner, const forward::Capacity& capacity, int32_t vocab_size,
                       int32_t sampled_tokens);

}  // namespace tandem::engine
