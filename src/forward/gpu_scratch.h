// The activations of one step in a GPU's memory: one arena, laid out once. Names follow spec/model.md and scratch.h.
#pragma once

#include <cstdint>

#include "device/kernel_types.h"
#include "forward/gpu_ops.h"
#include "forward/scratch.h"
#include "forward/text_model.h"
#include "model/shape.h"

namespace tandem::forward {

struct GpuScratch {
  using bf16 = device::bf16;
  // Every row count is Capacity::max_rows. [streams·hidden], [hidden], [hidden], [n], [n, n]
  bf16 *streams, *x, *y;
  float *post, *comb, *mhc;
  // KDA, P = heads·dim: raw [3P], low [2·dim], f, gate, v, o [P]; beta_logits [heads]; q, k, g [P]; beta [heads]
  bf16 *raw, *low, *f, *gate, *v, *o, *beta_logits;
  float *q, *k, *g, *beta, *kda;
  // DSA: a [q_lora_rank], query [heads·key], absorbed and attended [heads·kv_lora_rank], latent [kv_lora_rank],
  // value [heads·value], index_q [index heads·dim], index_k, index_gate [dim], index_weights [index heads]
  bf16 *a, *query, *absorbed, *attended, *latent, *value, *index_q, *index_k, *index_gate;
  float *index_weights, *gaps;
  int32_t *selected, *counts;
  std::byte *select, *attend;
  // Feed-forward
  float *router, *expert_weights;
  int32_t *chosen;
  std::byte *experts;
  // [rows, hidden], [logit rows, hidden], [logit rows, vocab], [logit rows]
  bf16 *hidden, *logit_hidden;
  float *logits;
  ops::Sampled *sampled;
  std::byte *sample;
  // The MTP layer: [rows, 2·hidden], [rows, hidden] twice, and by slot [hidden], [max_selected], [1]
  bf16 *mtp_input, *mtp_x, *mtp_hidden, *mtp_last_hidden;
  int32_t *mtp_selected, *mtp_counts;

  int64_t max_pools = 0;     // that a row may see
  int64_t max_selected = 0;  // tokens that a row attends to, at most

  // `shape` is the rank's. The arena's memory is the device's.
  void lay_out(Arena &arena, const device::GpuProperties &gpu, const model::Shape &shape, const Capacity &capacity);

 private:
  void attention_rows(Arena &arena, const device::GpuProperties &gpu, const model::Shape &shape,
                      const Capacity &capacity);
  void feed_forward_rows(Arena &arena, const model::Shape &shape, int64_t rows);
  void hidden_rows(Arena &arena, const model::Shape &shape, const Capacity &capacity);
};

// The feed-forward of a layer for ops::CudaExperts.
ops::ExpertShape expert_shape(const model::Shape &shape, bool moe, int64_t routed_count, int64_t shared_width,
                              int64_t shared_leaf);

}  // namespace tandem::forward
