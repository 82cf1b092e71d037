// Randomness without a state: noise that is a function of seed, position and token id alone, so that drafting, batching
// and replay cannot change what is drawn (spec/speculation.md 3.5).
#pragma once

#include <cstdint>

namespace tandem {

// In (0, 1): a function of (seed, absolute position of the token being sampled, token id) and of nothing else.
double keyed_uniform(uint64_t seed, int64_t position, int32_t token);

// −ln(−ln u) of that u: argmax over tokens of (logit / T + noise) draws from softmax(logit / T).
double keyed_gumbel(uint64_t seed, int64_t position, int32_t token);

}  // namespace tandem
