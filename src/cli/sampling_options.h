// The sampling flags that generate and chat share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/served_model.h"
#include "engine/engine.h"

namespace tandem::cli {

struct SamplingOptions {              // absent: the request's own value, else generation_config.json, else neutral
  std::optional<double> temperature;  // --temperature; below 1e-5: greedy
  std::optional<int32_t> top_k;       // --top-k; 0 or -1: off
  std::optional<double> top_p;        // --top-p
  std::optional<double> min_p;        // --min-p
  std::optional<uint64_t> seed;       // --seed; absent: random
  std::optional<int64_t> max_tokens;  // --max-tokens
};

// What generation_config.json asks for, with a random seed.
engine::SamplingParams default_sampling(const api::GenerationDefaults& defaults);

// The flags that were given, over `base`.
engine::SamplingParams apply(const SamplingOptions& options, engine::SamplingParams base);

}  // namespace tandem::cli
