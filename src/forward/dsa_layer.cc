// NoPE MLA over the tokens that the k-pooled indexer selects, top to bottom (spec/model.md 4).
#include <algorithm>
#include <array>
#include <cmath>

#include "forward/pass.h"
#include "ops/attend/mla_absorb.h"
#include "ops/attend/sparse_attend.h"
#include "ops/index/index_select.h"
#include "ops/index/index_store.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"

namespace tandem::forward {
namespace {

void normalise(const Pass& pass, const model::DsaWeights& w) {
  const Scratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  for (int64_t row = 0; row < pass.rows(); ++row) {
    float* a = s.a + row * shape.q_lora_rank;
    ops::rms_norm(a, w.q_a_layernorm.data(), shape.rms_norm_eps, shape.q_lora_rank, a);
    float* c = s.latent + row * shape.kv_lora_rank;
    ops::rms_norm(c, w.kv_a_layernorm.data(), shape.rms_norm_eps, shape.kv_lora_rank, c);
    float* k = s.index_k + row * shape.index_head_dim;
    ops::index_key_norm(k, w.indexer.k_norm_weight.data(), w.indexer.k_norm_bias.data(), shape.index_head_dim, k);
  }
}

void store(const Pass& pass, const PreparedLayer& layer, const Segment& segment) {
  const Scratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const int32_t* pages = pass.step.page_tables.data() + segment.page_table;
  const ops::PagedPlane latent = pass.pool.latent(layer.state_layer, pages);
  for (int64_t i = 0; i < segment.rows; ++i) {
    latent.store(segment.position + i, s.latent + (segment.first_row + i) * shape.kv_lora_rank);
  }
  ops::IndexStore index;
  index.dim = shape.index_head_dim;
  index.kpool = shape.index_kpool;
  index.position = segment.position;
  index.rows = segment.rows;
  index.key = s.index_k + segment.first_row * shape.index_head_dim;
  index.gate = s.index_gate + segment.first_row * shape.index_head_dim;
  index.ape = layer.weights->dsa->indexer.compress_ape.data();
  index.ring_key = pass.slots.index_key_ring(segment.slot, layer.state_layer);
  index.ring_gate = pass.slots.index_gate_ring(segment.slot, layer.state_layer);
  index.ring_rows = cache::ring_rows;
  index.pooled = pass.pool.pooled(layer.state_layer, pages);
  ops::index_store(pass.threads, index);
}

void select(const Pass& pass, const PreparedLayer& layer, const Segment& segment, int64_t number) {
  const Scratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const int64_t row = segment.first_row;
  ops::IndexSelect select;
  select.heads = shape.index_n_heads;
  select.dim = shape.index_head_dim;
  select.kpool = shape.index_kpool;
  select.budget = shape.pool_budget();
  select.position = segment.position;
  select.rows = segment.rows;
  select.q = s.index_q + row * shape.index_n_heads * shape.index_head_dim;
  select.head_weights = s.index_weights + row * shape.index_n_heads;
  select.pooled = pass.pool.pooled(layer.state_layer, pass.step.page_tables.data() + segment.page_table);
  select.max_pools = s.max_pools;
  select.scores = s.scores;
  select.order = s.order;
  select.max_selected = shape.max_selected();
  select.selected = s.selected + row * select.max_selected;
  select.counts = s.counts + row;
  select.gaps = s.gaps + row;
  ops::index_select(pass.threads, select);
  if (pass.mutation == Mutation::no_tail) {
    for (int64_t i = 0; i < segment.rows; ++i) {
      const auto tail = static_cast<int32_t>((segment.position + i + 1) % shape.index_kpool);
      select.counts[i] = std::max(1, select.counts[i] - tail);
    }
  }
  if (pass.probe != nullptr) {
    pass.probe->selection(number, row, segment.rows, select.selected, select.max_selected, select.counts, select.gaps);
  }
}

void attend(const Pass& pass, const PreparedLayer& layer, const Segment& segment) {
  const Scratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const int64_t row = segment.first_row, width = shape.num_attention_heads * shape.kv_lora_rank;
  ops::SparseAttend attend;
  attend.heads = shape.num_attention_heads;
  attend.kv_lora_rank = shape.kv_lora_rank;
  attend.rows = segment.rows;
  attend.scale = 1.0f / std::sqrt(static_cast<float>(shape.qk_nope_head_dim));
  attend.q = s.absorbed + row * width;
  attend.latent = pass.pool.latent(layer.state_layer, pass.step.page_tables.data() + segment.page_table);
  attend.max_selected = shape.max_selected();
  attend.selected = s.selected + row * attend.max_selected;
  attend.counts = s.counts + row;
  attend.scratch = s.attend;
  attend.pointers = s.pointers;
  attend.out = s.attended + row * width;
  ops::sparse_attend(pass.threads, attend);
}

}  // namespace

void dsa_attention(const Pass& pass, const PreparedLayer& layer, int64_t number, const float* x, float* y) {
  const model::DsaWeights& w = *layer.weights->dsa;
  const Scratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const int64_t hidden = shape.hidden_size, rows = pass.rows();

  const std::array<ops::LinearCall, 5> projections{{
      {&w.q_a_proj, x, hidden, s.a, shape.q_lora_rank},
      {&w.kv_a_proj, x, hidden, s.latent, shape.kv_lora_rank},
      {&w.indexer.wk, x, hidden, s.index_k, shape.index_head_dim},
      {&w.indexer.compress_gate, x, hidden, s.index_gate, shape.index_head_dim},
      {&w.indexer.weights_proj, x, hidden, s.index_weights, shape.index_n_heads},
  }};
  ops::linear(pass.threads, projections, rows);
  normalise(pass, w);
  const std::array<ops::LinearCall, 2> queries{{
      {&w.q_b_proj, s.a, shape.q_lora_rank, s.query, shape.num_attention_heads * shape.qk_nope_head_dim},
      {&w.indexer.wq_b, s.a, shape.q_lora_rank, s.index_q, shape.index_n_heads * shape.index_head_dim},
  }};
  ops::linear(pass.threads, queries, rows);

  const ops::MlaAbsorb kv_b{&layer.kv_b, shape.num_attention_heads, shape.qk_nope_head_dim, shape.v_head_dim, rows};
  ops::mla_absorb_query(pass.threads, kv_b, s.query, s.absorbed);
  for (const Segment& segment : pass.step.segments) {
    store(pass, layer, segment);
    select(pass, layer, segment, number);
    attend(pass, layer, segment);
  }
  ops::mla_expand_value(pass.threads, kv_b, s.attended, s.value);
  ops::linear(pass.threads, w.o_proj, s.value, y, rows);
}

}  // namespace tandem::forward
