// Flags over defaults.
#include "cli/sampling_options.h"

#include <algorithm>

#include "api/random.h"

namespace tandem::cli {

engine::SamplingParams default_sampling(const api::GenerationDefaults& defaults) {
  engine::SamplingParams params;
  params.temperature = defaults.temperature;
  params.top_k = defaults.top_k;
  params.top_p = defaults.top_p;
  params.min_p = defaults.min_p;
  params.seed = api::random_seed();
  return params;
}

engine::SamplingParams apply(const SamplingOptions& options, engine::SamplingParams base) {
  base.temperature = options.temperature.value_or(base.temperature);
  base.top_k = std::max(0, options.top_k.value_or(base.top_k));
  base.top_p = options.top_p.value_or(base.top_p);
  base.min_p = options.min_p.value_or(base.min_p);
  base.seed = options.seed.value_or(base.seed);
  return base;
}

}  // namespace tandem::cli
