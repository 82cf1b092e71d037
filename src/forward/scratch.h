// The activations of one step. One arena, laid out once; what it takes is known before it is allocated.
#pragma once

#include <cstdint>
#include <memory>

#include "forward/text_model.h"
#include "model/shape.h"
#include "ops/experts/experts.h"
#include "ops/latent/pages.h"

namespace tandem::forward {

// Of latent rows.
ops::CacheElement element_of(CacheType type);
// Of the DFlash2 drafter's context rows, which are plain.
constexpr ops::CacheElement context_element(CacheType type) {
  return type == CacheType::f32 ? ops::CacheElement::f32 : ops::CacheElement::bf16;
}

// Hands out aligned pieces of one allocation; without memory behind it, it only counts.
class Arena {
 public:
  explicit Arena(int64_t alignment = 64) : alignment_(alignment) {}
  template <typename T>
  T* take(int64_t count) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + alignment_ - 1) / alignment_ * alignment_;
    return reinterpret_cast<T*>(piece);
  }
  int64_t used() const { return used_; }
  void start_at(std::byte* base) {
    base_ = base;
    used_ = 0;
  }

 private:
  int64_t alignment_;
  std::byte* base_ = nullptr;
  int64_t used_ = 0;
};

struct Scratch {
  // Every row count is Capacity::max_rows; names follow spec/model.md.
  float *streams, *x, *y, *mapping, *post, *comb;
  // Heads are those of the rank. KDA, P = heads·dim: raw [3P], low [2·dim], f, gate, q, k, v, g, o [P], beta [heads],
  // working [threads, heads, dim, dim]
  float *raw, *low, *f, *gate, *q, *k, *v, *g, *o, *beta, *working;
  // DSA: a [q_lora_rank], query [heads·key], absorbed and attended [heads·kv_lora_rank], latent [kv_lora_rank],
  // value [heads·value], index_q [index heads·dim], index_k, index_gate [dim], index_weights [index heads]
  float *a, *query, *absorbed, *attended, *latent, *value, *index_q, *index_k, *index_gate, *index_weights;
  float *scores, *attend;  // [threads, …]
  int32_t *order, *selected, *counts;
  const float** pointers;
  float *gaps, *router, *expert_weights;
  int32_t* chosen;
  float *hidden, *logit_hidden, *logits;  // [rows, hidden], [logit rows, hidden], [logit rows, vocab]
  float *mtp_input, *mtp_x, *mtp_hidden;  // [rows, 2·hidden], [rows, hidden], [rows, hidden]
  // What MTP steps leave to mtp_chain steps, by slot: the last row's hidden [slots, hidden], and what its row selected
  // [slots, max_selected] and their number.
  float* mtp_last_hidden;
  int32_t *mtp_selected, *mtp_counts;
  int64_t max_pools = 0;
  int64_t max_selected = 0;  // tokens that a row attends to, at most

  float* exchange;  // [2, exchange_size()] of two ranks
  float* queries;   // [2, rows·heads·kv_lora_rank] of two ranks that share the pages

  // `shape`: of the whole model.
  void lay_out(Arena& arena, const model::Shape& shape, const Capacity& capacity, int64_t threads,
               const Ranks& ranks = {});

 private:
  void attention_rows(Arena& arena, const model::Shape& own, const Capacity& capacity, int64_t threads,
                      const Ranks& ranks);
  void hidden_rows(Arena& arena, const model::Shape& shape, const Capacity& capacity);
  void exchanged(Arena& arena, const model::Shape& shape, const Capacity& capacity, const Ranks& ranks);
};

// What a rank exchanges at most at a time, in floats.
int64_t exchange_size(const model::Shape& shape, const Capacity& capacity, const Ranks& ranks);

// The feed-forward's scratch of every layer kind in the model.
ops::ExpertScratch expert_scratch(const model::Shape& shape, int64_t max_rows, const Ranks& ranks = {});
int64_t expert_scratch_bytes(const model::Shape& shape, int64_t max_rows, const Ranks& ranks = {});

}  // namespace tandem::forward
