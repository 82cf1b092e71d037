// Lays the activations of a step out in the arena.
#include "forward/scratch.h"

#include <algorithm>

#include "cache/slots.h"
#include "model/split.h"
#include "ops/attend/sparse_attend.h"
#include "ops/index/index_select.h"

namespace tandem::forward {
namespace {

int64_t shared_width(const model::Shape& s, const Ranks& ranks) {
  const model::RankParts parts = model::parts_of_rank(s, ranks.rank, ranks.tensor_parallel_size);
  return std::max(parts.mlp_width.count, parts.shared_width.count);
}

}  // namespace

ops::CacheElement element_of(CacheType type) { return model::cache_records(1, 1, type).latent.kind; }

void Scratch::lay_out(Arena& arena, const model::Shape& whole, const Capacity& capacity, int64_t threads,
                      const Ranks& ranks) {
  const model::Shape s = model::shape_of_rank(whole, ranks.rank, ranks.tensor_parallel_size);
  const int64_t rows = capacity.max_rows, model_width = s.hidden_size, width = s.kda_width(), dim = s.kda_head_dim;
  const auto floats = [&arena](int64_t count) { return arena.take<float>(count); };
  streams = floats(rows * s.hc_mult * model_width);
  x = floats(rows * model_width);
  y = floats(rows * model_width);
  mapping = floats(rows * s.mhc_rows());
  post = floats(rows * s.hc_mult);
  comb = floats(rows * s.hc_mult * s.hc_mult);

  raw = floats(rows * 3 * width);
  low = floats(rows * 2 * dim);
  for (float** piece : {&f, &gate, &q, &k, &v, &g, &o}) *piece = floats(rows * width);
  beta = floats(rows * s.kda_num_heads);
  working = floats(threads * width * dim);
  attention_rows(arena, s, capacity, threads, ranks);

  router = floats(rows * s.n_routed_experts);
  chosen = arena.take<int32_t>(rows * s.num_experts_per_tok);
  expert_weights = floats(rows * s.num_experts_per_tok);

  hidden_rows(arena, s, capacity);
  exchanged(arena, whole, capacity, ranks);
}

void Scratch::attention_rows(Arena& arena, const model::Shape& s, const Capacity& capacity, int64_t threads,
                             const Ranks& ranks) {
  const int64_t rows = capacity.max_rows;
  const auto floats = [&arena](int64_t count) { return arena.take<float>(count); };
  a = floats(rows * s.q_lora_rank);
  query = floats(rows * s.num_attention_heads * s.qk_nope_head_dim);
  absorbed = floats(rows * s.num_attention_heads * s.kv_lora_rank);
  attended = floats(rows * s.num_attention_heads * s.kv_lora_rank);
  latent = floats(rows * s.kv_lora_rank);
  value = floats(rows * s.num_attention_heads * s.v_head_dim);
  index_q = floats(rows * s.index_n_heads * s.index_head_dim);
  index_k = floats(rows * s.index_head_dim);
  index_gate = floats(rows * s.index_head_dim);
  index_weights = floats(rows * s.index_n_heads);
  const int64_t page_ranks = ranks.decode_context_parallel_size;  // candidates of all of them are chosen from
  const int64_t stream_pages = capacity.max_stream_pages > 0 ? capacity.max_stream_pages : page_ranks * capacity.pages;
  max_pools = std::max(stream_pages * capacity.page_rows / s.index_kpool, page_ranks * (s.pool_budget() + 1));
  scores = floats(threads * max_pools);
  order = arena.take<int32_t>(threads * max_pools);
  const bool mtp = capacity.mtp && s.num_nextn_predict_layers > 0;
  // A row of a chain may attend to the chain beside what the row before it selected.
  max_selected = s.max_selected() + (mtp ? cache::max_window : 0);
  attend = floats(threads * ops::sparse_attend_scratch(max_selected, s.kv_lora_rank, element_of(capacity.cache_type)));
  pointers = arena.take<const float*>(threads * max_selected);
  selected = arena.take<int32_t>(rows * max_selected);
  counts = arena.take<int32_t>(rows);
  gaps = floats(rows);
}

void Scratch::hidden_rows(Arena& arena, const model::Shape& s, const Capacity& capacity) {
  const int64_t rows = capacity.max_rows, width = s.hidden_size, logit_rows = capacity.max_logit_rows;
  const auto floats = [&arena](int64_t count) { return arena.take<float>(count); };
  hidden = floats(rows * width);
  logit_hidden = floats(logit_rows * width);
  logits = floats(logit_rows * s.vocab_size);
  const int64_t mtp = capacity.mtp && s.num_nextn_predict_layers > 0 ? 1 : 0;
  mtp_input = floats(mtp * rows * 2 * width);
  mtp_x = floats(mtp * rows * width);
  mtp_hidden = floats(mtp * rows * width);
  mtp_last_hidden = floats(mtp * capacity.slots * width);
  mtp_selected = arena.take<int32_t>(mtp * capacity.slots * max_selected);
  mtp_counts = arena.take<int32_t>(mtp * capacity.slots);
}

int64_t exchange_size(const model::Shape& s, const Capacity& capacity, const Ranks& ranks) {
  if (ranks.tensor_parallel_size == 1) return 0;
  const model::RankParts first = model::parts_of_rank(s, 0, ranks.tensor_parallel_size);  // has the most of everything
  const int64_t rows = capacity.max_rows;
  int64_t size = std::max(rows * s.hidden_size, capacity.max_logit_rows * first.vocabulary.count);
  if (ranks.decode_context_parallel_size > 1) {
    size = std::max({size, rows * 2 * ops::attend_leaf_size(first.attention_heads.count, s.kv_lora_rank),
                     rows * ops::index_candidates_size(s.pool_budget())});
  }
  return size;
}

void Scratch::exchanged(Arena& arena, const model::Shape& s, const Capacity& capacity, const Ranks& ranks) {
  const model::RankParts first = model::parts_of_rank(s, 0, ranks.tensor_parallel_size);
  const bool pages_are_shared = ranks.decode_context_parallel_size > 1;
  exchange = arena.take<float>(2 * exchange_size(s, capacity, ranks));
  queries =
      arena.take<float>(pages_are_shared ? 2 * capacity.max_rows * first.attention_heads.count * s.kv_lora_rank : 0);
}

ops::ExpertScratch expert_scratch(const model::Shape& s, int64_t max_rows, const Ranks& ranks) {
  return ops::ExpertScratch(max_rows, s.hidden_size, s.n_routed_experts, s.num_experts_per_tok, s.moe_intermediate_size,
                            shared_width(s, ranks));
}

int64_t expert_scratch_bytes(const model::Shape& s, int64_t max_rows, const Ranks& ranks) {
  return ops::ExpertScratch::bytes(max_rows, s.hidden_size, s.n_routed_experts, s.num_experts_per_tok,
                                   s.moe_intermediate_size, shared_width(s, ranks));
}

}  // namespace tandem::forward
