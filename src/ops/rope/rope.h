// Rotary position embedding over a whole head in halves, as the DFlash2 drafter uses it (spec/speculation.md 1.4).
#pragma once

#include <cstdint>
#include <span>

namespace tandem::ops {

// frequencies[j] = theta^(−2j/head_dim) for j < head_dim/2, in fp32.
void rope_frequencies(double theta, int64_t head_dim, float* frequencies);

// turns [positions, head_dim]: for each position cos(position·frequency_j), then the sines; the phase is in fp32.
void rope_turns(std::span<const int64_t> positions, const float* frequencies, int64_t head_dim, float* turns);

// One head in place, with one row of turns: x1·cos − x2·sin and x2·cos + x1·sin of its halves x1 and x2.
void rope(const float* turn, int64_t head_dim, float* x);

}  // namespace tandem::ops
