// Arguments of rates.cu: what a benchmark or a check of a GPU needs to measure its limits.
#pragma once

#include "device/kernel_types.h"

namespace tandem::device {

// words[i] = (hash(i, seed) & keep) + add: random bits where `keep` has ones.
struct FillRandomArgs {
  uint32_t* words;
  int64_t count;
  uint32_t seed, keep, add;
};

// Reads `count` pieces of 16 bytes once. `out` (4 bytes) is written only if their bits cancel to an unlikely value: so
// the loads are needed.
struct ReadStreamArgs {
  const uint8_t* data;  // aligned to 16
  int64_t count;
  uint32_t* out;
};

struct NothingArgs {
  int32_t unused;
};

}  // namespace tandem::device
