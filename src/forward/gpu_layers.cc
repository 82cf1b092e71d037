// The sub-layers on a GPU, top to bottom: kda_layer.cc, dsa_layer.cc and feed_forward.cc say the same for CPUs.
#include <array>
#include <cmath>

#include "cache/slots.h"
#include "forward/gpu_pass.h"
#include "ops/index/index_store.h"

namespace tandem::forward {
namespace {

ops::CudaLinearCall call(const ops::CudaMatrix& w, const device::bf16* x, int64_t x_stride, void* y, int64_t y_stride,
                         bool fp32 = false) {
  return {w, x, x_stride, y, y_stride, fp32};
}

// What the recurrence of this rank's heads takes.
void project_kda(const GpuPass& pass, const GpuKda& w) {
  const GpuScratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const int64_t hidden = shape.hidden_size, width = shape.kda_width(), dim = shape.kda_head_dim;

  const std::array projections{
      call(w.q_proj, s.x, hidden, s.raw, 3 * width),
      call(w.k_proj, s.x, hidden, s.raw + width, 3 * width),
      call(w.v_proj, s.x, hidden, s.raw + 2 * width, 3 * width),
      call(w.f_a_proj, s.x, hidden, s.low, 2 * dim),
      call(w.g_a_proj, s.x, hidden, s.low + dim, 2 * dim),
      call(w.b_proj, s.x, hidden, s.beta_logits, shape.kda_num_heads),
  };
  pass.ops.linear.run(projections, pass.rows(), pass.max_rows);
  const std::array gates{
      call(w.f_b_proj, s.low, 2 * dim, s.f, width),
      call(w.g_b_proj, s.low + dim, 2 * dim, s.gate, width),
  };
  pass.ops.linear.run(gates, pass.rows(), pass.max_rows);
}

// s.o of this rank's heads.
void run_heads(const GpuPass& pass, const GpuLayer& layer) {
  const GpuScratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const GpuKda& w = *layer.kda;
  const int64_t width = shape.kda_width(), heads = shape.kda_num_heads, state = layer.state_layer;
  project_kda(pass, w);

  ops::KdaConvArgs conv{};
  conv.step = pass.step;
  conv.raw = s.raw;
  conv.f = s.f;
  conv.b = s.beta_logits;
  conv.raw_stride = 3 * width;
  conv.f_stride = width;
  conv.b_stride = heads;
  conv.ring = pass.slots.conv_ring(state);
  conv.taps = w.taps;
  conv.dt_bias = w.dt_bias;
  conv.rate = w.rate;
  conv.gate_lower_bound = shape.gate_lower_bound;
  conv.heads = static_cast<int32_t>(heads);
  conv.kernel = static_cast<int32_t>(shape.short_conv_kernel_size);
  conv.k = s.k;
  conv.g = s.g;
  conv.v = s.v;

  ops::KdaBlockArgs block{};
  block.step = pass.step;
  block.heads = static_cast<int32_t>(heads);
  block.k = s.k;
  block.g = s.g;
  block.v = s.v;
  block.s0 = pass.slots.s0(state);
  block.log_k = pass.slots.log_k(state);
  block.log_g = pass.slots.log_g(state);
  block.log_delta = pass.slots.log_delta(state);
  block.scratch = s.kda;
  block.o = s.o;
  pass.ops.kda_block.run_with_conv(conv, block, pass.max_rows, pass.max_segments);

  ops::KdaOutputArgs output{};
  output.rows = pass.rows();
  output.o = s.o;
  output.gate = s.gate;
  output.gate_stride = width;
  output.weight = w.o_norm;
  output.eps = shape.rms_norm_eps;
  output.heads = static_cast<int32_t>(heads);
  output.out = s.o;
  pass.ops.kda_output.run(output, pass.max_rows);
}

void project_latents(const GpuPass& pass, const GpuDsa& w, bool scores) {
  const GpuScratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const int64_t hidden = shape.hidden_size, dim = shape.index_head_dim;
  const std::array projections{
      call(w.q_a_proj, s.x, hidden, s.a, shape.q_lora_rank),
      call(w.kv_a_proj, s.x, hidden, s.latent, shape.kv_lora_rank),
      call(w.index_wk, s.x, hidden, s.index_k, dim),
      call(w.index_gate, s.x, hidden, s.index_gate, dim),
      call(w.index_weights_proj, s.x, hidden, s.index_weights, shape.index_n_heads, true),
  };
  // Rows that reuse a selection score nothing.
  pass.ops.linear.run(std::span(projections).first(scores ? 5 : 4), pass.rows(), pass.max_rows);
  const auto norm = [&](device::bf16* x, int64_t width, const float* weight, const float* bias, float eps) {
    return ops::NormPart{x, x, weight, bias, width, width, static_cast<int32_t>(width), eps};
  };
  constexpr float index_eps = 1e-6f;  // whatever rms_norm_eps is (spec/model.md 4.4)
  const std::array norms{
      norm(s.a, shape.q_lora_rank, w.q_a_layernorm, nullptr, shape.rms_norm_eps),
      norm(s.latent, shape.kv_lora_rank, w.kv_a_layernorm, nullptr, shape.rms_norm_eps),
      norm(s.index_k, dim, w.index_norm, w.index_norm_bias, index_eps),
  };
  pass.ops.norm.run(norms, pass.rows(), pass.max_rows);
  const std::array queries{
      call(w.q_b_proj, s.a, shape.q_lora_rank, s.query, shape.num_attention_heads * shape.qk_nope_head_dim),
      call(w.index_wq_b, s.a, shape.q_lora_rank, s.index_q, shape.index_n_heads * dim),
  };
  const size_t first = shape.num_attention_heads > 0 ? 0 : 1, end = scores ? 2 : 1;
  if (first < end) pass.ops.linear.run(std::span(queries).subspan(first, end - first), pass.rows(), pass.max_rows);
}

void store_rows(const GpuPass& pass, const GpuLayer& layer) {
  const GpuScratch& s = pass.scratch;
  const int64_t state = layer.state_layer, dim = pass.shape.index_head_dim;
  pass.ops.latent_store.run({pass.step, pass.pool.latent(state), s.latent, pass.shape.kv_lora_rank}, pass.max_rows);
  ops::IndexStoreArgs index{};
  index.step = pass.step;
  index.key = s.index_k;
  index.gate = s.index_gate;
  index.key_stride = index.gate_stride = dim;
  index.ape = layer.dsa->index_ape;
  index.key_ring = pass.slots.index_key_ring(state);
  index.gate_ring = pass.slots.index_gate_ring(state);
  index.ring_rows = static_cast<int32_t>(cache::ring_rows);
  index.pooled = pass.pool.pooled(state);
  pass.ops.index_store.run(index, pass.max_rows);
}

void select_rows(const GpuPass& pass, const GpuLayer& layer) {
  const GpuScratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  ops::SelectionShareArgs share{};
  share.step = pass.step;
  share.selected = s.selected;
  share.counts = s.counts;
  share.gaps = s.gaps;
  share.shared_selected = s.mtp_selected;
  share.shared_counts = s.mtp_counts;
  share.max_selected = static_cast<int32_t>(s.max_selected);
  if (pass.selection == GpuPass::Selection::reuse) return pass.ops.selection_share.reuse(share, pass.max_segments);
  ops::IndexSelectArgs select{};
  select.step = pass.step;
  select.q = s.index_q;
  select.head_weights = s.index_weights;
  select.q_stride = shape.index_n_heads * shape.index_head_dim;
  select.weights_stride = shape.index_n_heads;
  select.pooled = pass.pool.pooled(layer.state_layer);
  select.heads = static_cast<int32_t>(shape.index_n_heads);
  select.budget = static_cast<int32_t>(shape.pool_budget());
  select.selected = s.selected;
  select.counts = s.counts;
  select.gaps = s.gaps;
  select.max_selected = static_cast<int32_t>(s.max_selected);
  select.max_pools = static_cast<int32_t>(s.max_pools);
  pass.ops.index_select.run(select, pass.max_rows, s.select);
  if (pass.selection == GpuPass::Selection::leave) pass.ops.selection_share.leave(share, pass.max_segments);
}

// s.value of this rank's heads.
void attend_with_heads(const GpuPass& pass, const GpuLayer& layer, const ops::CudaMlaAbsorb& absorb) {
  const GpuScratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  ops::SparseAttendArgs attend{};
  attend.step = pass.step;
  attend.q = s.absorbed;
  attend.out = s.attended;
  attend.selected = s.selected;
  attend.counts = s.counts;
  attend.latent = pass.pool.latent(layer.state_layer);
  attend.max_selected = static_cast<int32_t>(s.max_selected);
  attend.heads = static_cast<int32_t>(shape.num_attention_heads);
  attend.scale = 1.0f / std::sqrt(static_cast<float>(shape.qk_nope_head_dim));
  pass.ops.attend.run(attend, pass.max_rows, s.attend);
  const std::array expanded{absorb.expand_value(layer.dsa->kv_b, s.attended, s.value)};
  pass.ops.linear.run(expanded, pass.rows(), pass.max_rows);
}

}  // namespace

void kda_attention(const GpuPass& pass, const GpuLayer& layer) {
  if (pass.shape.kda_num_heads > 0) run_heads(pass, layer);
  pass.group.project_heads(pass.ops, layer.kda->o_proj, pass.scratch.o, pass.group.second_has_kda_heads(),
                           pass.scratch.y, pass.rows(), pass.max_rows);
}

void dsa_attention(const GpuPass& pass, const GpuLayer& layer) {
  const GpuScratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const GpuDsa& w = *layer.dsa;
  project_latents(pass, w, pass.selection != GpuPass::Selection::reuse);
  const ops::CudaMlaAbsorb absorb{static_cast<int32_t>(shape.num_attention_heads),
                                  static_cast<int32_t>(shape.qk_nope_head_dim), static_cast<int32_t>(shape.v_head_dim),
                                  static_cast<int32_t>(shape.kv_lora_rank)};
  const bool heads = shape.num_attention_heads > 0;
  if (heads) {
    const std::array absorbed{absorb.absorb_query(w.kv_b_keys, s.query, s.absorbed)};
    pass.ops.linear.run(absorbed, pass.rows(), pass.max_rows);
  }
  store_rows(pass, layer);
  select_rows(pass, layer);
  if (heads) attend_with_heads(pass, layer, absorb);
  pass.group.project_heads(pass.ops, w.o_proj, s.value, pass.group.second_has_attention_heads(), s.y, pass.rows(),
                           pass.max_rows);
}

void feed_forward(const GpuPass& pass, const GpuLayer& layer) {
  const GpuScratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const GpuFeedForward& w = layer.feed_forward;
  if (w.moe) {
    const std::array router{call(w.router, s.x, shape.hidden_size, s.router, shape.n_routed_experts, true)};
    pass.ops.linear.run(router, pass.rows(), pass.max_rows);
    ops::RouteArgs route{};
    route.rows = pass.rows();
    route.logits = s.router;
    route.bias = w.bias;
    route.chosen = s.chosen;
    route.weights = s.expert_weights;
    route.experts = static_cast<int32_t>(shape.n_routed_experts);
    route.per_token = static_cast<int32_t>(shape.num_experts_per_tok);
    route.normalise = shape.norm_topk_prob ? 1 : 0;
    route.routed_scaling_factor = shape.routed_scaling_factor;
    pass.ops.route.run(route, pass.max_rows);
  }
  ops::ExpertRows rows;
  rows.rows = pass.rows();
  rows.chosen = s.chosen;
  rows.weights = s.expert_weights;
  rows.routed = w.routed;
  rows.shared = w.shared;
  rows.x = s.x;
  rows.x_stride = shape.hidden_size;
  rows.y = s.y;
  rows.y_stride = shape.hidden_size;
  rows.scratch = s.experts;
  ops::ExpertShape parts = expert_shape(shape, w.moe, pass.group.own().experts.count, w.shared_width, w.shared_leaf);
  if (w.moe) parts.first_routed = pass.group.own().experts.first;
  pass.group.feed_forward(pass.ops, parts, rows, pass.max_rows);
}

}  // namespace tandem::forward
