// How much memory the engine takes and how long a stream may become, decided before anything is allocated.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "forward/text_model.h"
#include "model/shape.h"

namespace tandem::engine {

inline constexpr int64_t default_kv_cache_memory = int64_t{1} << 30;
inline constexpr int32_t default_max_num_batched_tokens = 512;

struct PlanSettings {                  // zero: the default
  int64_t kv_cache_memory = 0;         // --kv-cache-memory: bytes for the pages of the token pool
  int64_t max_model_len = 0;           // --max-model-len: tokens of prompt and reply together
  int32_t max_num_batched_tokens = 0;  // --max-num-batched-tokens: rows of one prefill chunk
  int64_t machine_memory = 0;          // bytes that the plan must stay below; 0: not checked
};

struct Plan {
  forward::Capacity capacity;  // one slot; null page included
  int64_t max_model_len = 0;   // min(max_position_embeddings, pool, --max-model-len), tokens
  int64_t page_bytes = 0;      // bytes of one page of 256 tokens over all layers
  int64_t total_bytes = 0;     // everything that the model allocates besides the weights
};

// Bytes that a model of a capacity allocates: TextModel::planned_bytes, or another formula in tests.
using PlannedBytes = std::function<int64_t(const forward::Capacity&)>;

// The pool gets the pages of a stream of max_model_len tokens, or fewer if --kv-cache-memory does not hold them and no
// --max-model-len was given. Throws Error(usage) for settings outside their range (or a --max-model-len beyond what the
// model was made for), Error(does_not_fit), naming the setting that would fit, when they cannot be had.
Plan make_plan(int64_t max_position_embeddings, const PlannedBytes& planned_bytes, const PlanSettings& settings);

}  // namespace tandem::engine
