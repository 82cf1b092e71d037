// Lays a step's activations out in a GPU's memory.
#include "forward/gpu_scratch.h"

#include <algorithm>
#include <limits>

#include "cache/slots.h"
#include "device/kernel_dimensions.h"
#include "model/split.h"

namespace tandem::forward {

std::vector<std::string> kernel_defines(const model::Shape& shape, int64_t drafter_head_dim) {
  return device::model_defines(
      {shape.kda_head_dim, shape.kv_lora_rank, shape.index_head_dim, shape.index_kpool, drafter_head_dim});
}

ops::ExpertShape expert_shape(const model::Shape& shape, bool moe, int64_t routed_count, int64_t shared_width,
                              int64_t shared_leaf) {
  ops::ExpertShape out;
  out.hidden = shape.hidden_size;
  if (moe) {
    out.experts = shape.n_routed_experts;
    out.per_token = shape.num_experts_per_tok;
    out.routed_count = routed_count;
    out.width = shape.moe_intermediate_size;
  }
  out.shared_width = shared_width;
  out.shared_leaf = shared_leaf;
  out.swiglu_limit = shape.swiglu_limit;
  return out;
}

void GpuScratch::lay_out(Arena& arena, const device::GpuProperties& gpu, const model::Shape& s,
                         const Capacity& capacity) {
  const int64_t rows = capacity.max_rows, width = s.hidden_size, kda_width = s.kda_width();
  const auto values = [&arena](int64_t count) { return arena.take<bf16>(count); };
  const auto floats = [&arena](int64_t count) { return arena.take<float>(count); };
  streams = values(rows * s.hc_mult * width);
  x = values(rows * width);
  y = values(rows * width);
  post = floats(rows * s.hc_mult);
  comb = floats(rows * s.hc_mult * s.hc_mult);
  mhc = floats(ops::CudaMhc::scratch_bytes(width, rows) / 4);

  raw = values(rows * 3 * kda_width);
  low = values(rows * 2 * s.kda_head_dim);
  for (bf16** piece : {&f, &gate, &v, &o}) *piece = values(rows * kda_width);
  beta_logits = values(rows * s.kda_num_heads);
  for (float** piece : {&q, &k, &g}) *piece = floats(rows * kda_width);
  beta = floats(rows * s.kda_num_heads);
  kda = floats(ops::CudaKdaBlock::scratch_bytes(s.kda_num_heads, s.kda_head_dim, rows, capacity.slots) / 4);

  attention_rows(arena, gpu, s, capacity);
  feed_forward_rows(arena, s, rows);
  hidden_rows(arena, s, capacity);
}

void GpuScratch::attention_rows(Arena& arena, const device::GpuProperties& gpu, const model::Shape& s,
                                const Capacity& capacity) {
  const int64_t rows = capacity.max_rows, heads = s.num_attention_heads;
  const auto values = [&arena](int64_t count) { return arena.take<bf16>(count); };
  const auto bytes = [&arena](int64_t count) { return arena.take<std::byte>(count); };
  a = values(rows * s.q_lora_rank);
  query = values(rows * heads * s.qk_nope_head_dim);
  absorbed = values(rows * heads * s.kv_lora_rank);
  attended = values(rows * heads * s.kv_lora_rank);
  latent = values(rows * s.kv_lora_rank);
  value = values(rows * heads * s.v_head_dim);
  index_q = values(rows * s.index_n_heads * s.index_head_dim);
  index_k = values(rows * s.index_head_dim);
  index_gate = values(rows * s.index_head_dim);
  index_weights = arena.take<float>(rows * s.index_n_heads);
  const int64_t stream_pages =
      capacity.max_stream_pages > 0 ? std::min(capacity.max_stream_pages, capacity.pages) : capacity.pages;
  max_pools = std::max(stream_pages * capacity.page_rows / s.index_kpool, s.pool_budget() + 1);
  const bool mtp = capacity.mtp && s.num_nextn_predict_layers > 0;
  // A row of a chain may attend to the chain beside what the row before it selected.
  max_selected = s.max_selected() + (mtp ? cache::max_window : 0);
  selected = arena.take<int32_t>(rows * max_selected);
  counts = arena.take<int32_t>(rows);
  gaps = arena.take<float>(rows);
  select = bytes(ops::CudaIndexSelect::scratch_bytes(rows, max_pools, s.pool_budget()));
  attend = bytes(ops::CudaSparseAttend::scratch_bytes(gpu, rows, heads, s.kv_lora_rank, max_selected));
}

void GpuScratch::feed_forward_rows(Arena& arena, const model::Shape& s, int64_t rows) {
  router = arena.take<float>(rows * s.n_routed_experts);
  chosen = arena.take<int32_t>(rows * s.num_experts_per_tok);
  expert_weights = arena.take<float>(rows * s.num_experts_per_tok);
  // The largest of a dense layer and a layer with experts.
  int64_t expert_bytes = 0;
  for (const bool moe : {false, true}) {
    const int64_t of = moe ? s.shared_width() : s.intermediate_size,
                  half = model::part_of(of, model::mlp_block, 0, 2).count;
    for (const int64_t leaf : {half, of})  // with two leaves, or one
      expert_bytes = std::max(
          expert_bytes, ops::CudaExperts::scratch_bytes(expert_shape(s, moe, s.n_routed_experts, of, leaf), rows));
  }
  experts = arena.take<std::byte>(expert_bytes);
}

void GpuScratch::hidden_rows(Arena& arena, const model::Shape& s, const Capacity& capacity) {
  const int64_t rows = capacity.max_rows, width = s.hidden_size;
  const auto values = [&arena](int64_t count) { return arena.take<bf16>(count); };
  hidden = values(rows * width);
  logit_hidden = values(capacity.max_logit_rows * width);
  logits = arena.take<float>(capacity.max_logit_rows * s.vocab_size);
  sampled = arena.take<ops::Sampled>(capacity.max_logit_rows);
  sample = arena.take<std::byte>(ops::CudaSample::scratch_bytes(capacity.max_logit_rows));
  const int64_t layers = capacity.mtp && s.num_nextn_predict_layers > 0 ? 1 : 0;
  mtp_input = values(layers * rows * 2 * width);
  mtp_x = values(layers * rows * width);
  mtp_hidden = values(layers * rows * width);
  mtp_last_hidden = values(layers * capacity.slots * width);
  mtp_selected = arena.take<int32_t>(layers * capacity.slots * max_selected);
  mtp_counts = arena.take<int32_t>(layers * capacity.slots);
}

}  // namespace tandem::forward
