// How much memory the engine takes, how many streams run and how long one may become, decided before anything is
// allocated. `tandem plan` prints it, `serve` runs it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "forward/text_model.h"
#include "model/shape.h"

namespace tandem::engine {

inline constexpr int64_t default_kv_cache_memory = int64_t{1} << 30;
inline constexpr int64_t default_kept_states_memory = int64_t{256} << 20;
inline constexpr int64_t default_kept_states_memory_of_gpu = int64_t{1} << 30;
inline constexpr int32_t default_max_num_batched_tokens = 512;
inline constexpr int32_t default_max_num_batched_tokens_of_gpu = 2048;
inline constexpr int32_t default_max_num_seqs = 4;
inline constexpr int32_t largest_max_num_seqs = 64;

struct PlanSettings {
  int64_t kv_cache_memory = 0;         // --kv-cache-memory: bytes for the pages of a rank's token pool; 0: 1 GiB
  int64_t max_model_len = 0;           // --max-model-len: tokens of prompt and reply together; 0: what fits
  int32_t max_num_batched_tokens = 0;  // --max-num-batched-tokens: rows of one prefill chunk; 0: 512
  int32_t max_num_seqs = default_max_num_seqs;              // --max-num-seqs: streams at a time
  int64_t kept_states_memory = default_kept_states_memory;  // --kept-states-memory, bytes of a rank; 0: none are kept
  forward::Ranks ranks = {};                                // sizes; Ranks::rank plays no part
  forward::CacheType cache_type = forward::CacheType::f32;  // --kv-cache-dtype
  forward::Compute compute = forward::Compute::f32;         // --compute
  bool mtp = true;                   // the MTP layer's caches and scratch, if the model has that layer
  int32_t max_draft_rows = 0;        // drafts that a step verifies at most, over all streams: rows with logits
  int64_t machine_memory = 0;        // bytes that the plan must stay below, weights not counted; 0: not checked
  bool memory_of_each_rank = false;  // machine_memory belongs to each rank (GPUs); else all ranks share it
  bool fill_memory = false;  // the pool takes what the rest leaves of machine_memory, unless kv_cache_memory is set
};

struct Plan {
  forward::Capacity capacity;  // of each rank; null page included
  int64_t max_model_len = 0;   // min(max_position_embeddings, what the pool holds, --max-model-len), tokens
  int64_t page_bytes = 0;      // bytes of one page of 256 tokens over all layers
  int64_t stream_bytes = 0;    // of a slot
  int64_t kept_state_bytes = 0;
  int64_t total_bytes = 0;  // everything that one rank allocates besides the weights
  int64_t pool_rows = 0;    // token rows of all ranks that can be used at a time
  int32_t page_groups = 1;  // ranks that the entries of a page table alternate between
  int32_t ranks = 1;
  int64_t machine_bytes() const { return ranks * total_bytes; }
};

// Bytes that one rank of a model allocates for a capacity: text_model_bytes(), or another formula in tests.
using PlannedBytes = std::function<int64_t(const forward::Capacity&)>;

// The pool gets the pages that its memory affords, though no more than all streams and kept states of the greatest
// length could hold: the room beyond one stream serves other streams and kept prefixes. Throws Error(usage) for
// settings outside their range (or a --max-model-len beyond what the model was made for), Error(does_not_fit), naming
// settings that would fit, when they cannot be had.
Plan make_plan(int64_t max_position_embeddings, const PlannedBytes& planned_bytes, const PlanSettings& settings);

// "512MiB": rounded up to whole MiB, as a user would type it; "640KiB" and bytes for what is smaller than a MiB.
std::string size_at_least(int64_t bytes);
std::string size_at_most(int64_t bytes);  // the same, rounded down

}  // namespace tandem::engine
