// NoPE MLA over the tokens that the k-pooled indexer selects, top to bottom (spec/model.md 4).
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "forward/pass.h"
#include "ops/attend/mla_absorb.h"
#include "ops/attend/sparse_attend.h"
#include "ops/index/index_select.h"
#include "ops/index/index_store.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/row_tasks.h"

namespace tandem::forward {
namespace {

void normalise(const Pass& pass, const model::DsaWeights& w) {
  const Scratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  ops::for_rows(pass.threads, pass.rows(), 16, [&](int64_t row) {
    float* a = s.a + row * shape.q_lora_rank;
    ops::rms_norm(a, w.q_a_layernorm.data(), shape.rms_norm_eps, shape.q_lora_rank, a);
    ops::round_values(pass.compute, ops::RoundingPoint::norm, a, shape.q_lora_rank);
    float* c = s.latent + row * shape.kv_lora_rank;
    ops::rms_norm(c, w.kv_a_layernorm.data(), shape.rms_norm_eps, shape.kv_lora_rank, c);
    ops::round_values(pass.compute, ops::RoundingPoint::norm, c, shape.kv_lora_rank);
    float* k = s.index_k + row * shape.index_head_dim;
    ops::index_key_norm(k, w.indexer.k_norm_weight.data(), w.indexer.k_norm_bias.data(), shape.index_head_dim, k);
    ops::round_values(pass.compute, ops::RoundingPoint::norm, k, shape.index_head_dim);
  });
}

// A plane of this rank's pool.
ops::PagedPlane held_here(const Pass& pass, ops::PagedPlane plane) {
  plane.ranks = pass.group.ranks.decode_context_parallel_size;
  plane.rank = plane.ranks > 1 ? pass.group.ranks.rank : 0;
  return plane;
}
ops::PagedPlane latent_plane(const Pass& pass, const PreparedLayer& layer, const Segment& segment) {
  return held_here(pass, pass.pool.latent(layer.state_layer, pass.step.page_tables.data() + segment.page_table));
}
ops::PagedPlane pooled_plane(const Pass& pass, const PreparedLayer& layer, const Segment& segment) {
  return held_here(pass, pass.pool.pooled(layer.state_layer, pass.step.page_tables.data() + segment.page_table));
}

void store(const Pass& pass, const PreparedLayer& layer, const Segment& segment, const Worker& worker) {
  const Scratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const ops::PagedPlane latent = latent_plane(pass, layer, segment);
  for (int64_t i = 0; i < segment.rows; ++i) {
    if (!latent.holds(segment.position + i)) continue;
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
  index.pooled = pooled_plane(pass, layer, segment);
  ops::index_store(worker.threads, index);
}

ops::IndexSelect index_select_of(const Pass& pass, const PreparedLayer& layer, const Segment& segment,
                                 const Worker& worker) {
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
  select.pooled = pooled_plane(pass, layer, segment);
  select.max_pools = s.max_pools;
  select.scores = s.scores + worker.lane * s.max_pools;
  select.order = s.order + worker.lane * s.max_pools;
  select.max_selected = s.max_selected;
  select.selected = s.selected + row * select.max_selected;
  select.counts = s.counts + row;
  select.gaps = s.gaps + row;
  return select;
}

// A deliberate mistake for parity to notice.
void drop_tails(const Pass& pass, const Segment& segment) {
  for (int64_t i = 0; i < segment.rows; ++i) {
    int32_t& count = pass.scratch.counts[segment.first_row + i];
    const auto tail = static_cast<int32_t>((segment.position + i + 1) % pass.shape.index_kpool);
    count = std::max(1, count - tail);
  }
}

// After the selection of an MTP segment: its last row's is what the rows of a chain attend to.
void leave_selection(const Pass& pass, const Segment& segment) {
  const SharedSelection& shared = pass.shared_selection;
  if (shared.selected == nullptr) return;
  const Scratch& s = pass.scratch;
  const int64_t row = segment.first_row + segment.rows - 1;
  std::copy_n(s.selected + row * s.max_selected, s.counts[row], shared.selected + segment.slot * s.max_selected);
  shared.counts[segment.slot] = s.counts[row];
}

// A chain's row attends to what the last absorbed row did and to the rows of the chain, itself included.
void reuse_selection(const Pass& pass, const Segment& segment) {
  const SharedSelection& shared = pass.shared_selection;
  const Scratch& s = pass.scratch;
  int32_t* kept = shared.selected + segment.slot * s.max_selected;
  int32_t& count = shared.counts[segment.slot];
  kept[count++] = static_cast<int32_t>(segment.position);
  std::copy_n(kept, count, s.selected + segment.first_row * s.max_selected);
  s.counts[segment.first_row] = count;
  s.gaps[segment.first_row] = std::numeric_limits<float>::infinity();
}

void select(const Pass& pass, const PreparedLayer& layer, const Segment& segment, const Worker& worker) {
  if (pass.shared_selection.reuse) return reuse_selection(pass, segment);
  ops::index_select(worker.threads, index_select_of(pass, layer, segment, worker));
  if (pass.mutation == Mutation::no_tail) drop_tails(pass, segment);
  leave_selection(pass, segment);
}

// Ranks that share the pages find their candidates and choose from everybody's.
void select_over_ranks(const Pass& pass, const PreparedLayer& layer) {
  if (pass.shared_selection.reuse) {
    for (const Segment& segment : pass.step.segments) reuse_selection(pass, segment);
    return;
  }
  const Group& group = pass.group;
  const int64_t row_size = ops::index_candidates_size(pass.shape.pool_budget()), size = pass.rows() * row_size;
  const Worker all{pass.threads, 0};
  const bool any = std::any_of(pass.step.segments.begin(), pass.step.segments.end(), [&](const Segment& segment) {
    return ops::index_needs_scores(index_select_of(pass, layer, segment, all));
  });
  for_segments(pass, [&](const Segment& segment, const Worker& worker) {
    const ops::IndexSelect select = index_select_of(pass, layer, segment, worker);
    if (ops::index_needs_scores(select))
      ops::index_candidates(worker.threads, select, group.mine(size) + segment.first_row * row_size);
  });
  if (any) group.gather(size);
  for_segments(pass, [&](const Segment& segment, const Worker& worker) {
    const int64_t at = segment.first_row * row_size;
    const float* candidates[2] = {group.of(0, size) + at, group.of(1, size) + at};
    ops::index_choose(worker.threads, index_select_of(pass, layer, segment, worker), candidates);
    if (pass.mutation == Mutation::no_tail) drop_tails(pass, segment);
    leave_selection(pass, segment);
  });
}

void show_selection(const Pass& pass, int64_t number) {
  if (pass.probe == nullptr) return;
  const Scratch& s = pass.scratch;
  const int64_t most = s.max_selected;
  for (const Segment& segment : pass.step.segments) {
    const int64_t row = segment.first_row;
    pass.probe->selection(number, row, segment.rows, s.selected + row * most, most, s.counts + row, s.gaps + row);
  }
}

// Attention of `heads` heads whose queries are [rows, heads, kv_lora_rank]; out likewise.
ops::SparseAttend attend_of(const Pass& pass, const PreparedLayer& layer, const Segment& segment, const Worker& worker,
                            int64_t heads, const float* queries, float* out) {
  const Scratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const int64_t row = segment.first_row, width = heads * shape.kv_lora_rank;
  ops::SparseAttend attend;
  attend.heads = heads;
  attend.kv_lora_rank = shape.kv_lora_rank;
  attend.rows = segment.rows;
  attend.scale = 1.0f / std::sqrt(static_cast<float>(shape.qk_nope_head_dim));
  attend.q = queries + row * width;
  attend.latent = latent_plane(pass, layer, segment);
  attend.max_selected = s.max_selected;
  attend.selected = s.selected + row * attend.max_selected;
  attend.counts = s.counts + row;
  attend.scratch = s.attend + worker.lane * ops::sparse_attend_scratch(attend.max_selected, shape.kv_lora_rank,
                                                                       attend.latent.element);
  attend.pointers = s.pointers + worker.lane * attend.max_selected;
  attend.out = out + row * width;
  return attend;
}

// Ranks that share the pages: each attends with all heads to its own leaf's keys; then each merges its own heads.
void attend_over_ranks(const Pass& pass, const PreparedLayer& layer) {
  const Scratch& s = pass.scratch;
  const Group& group = pass.group;
  const int64_t rows = pass.rows(), rank = pass.shape.kv_lora_rank;
  const int64_t most = group.parts[0].attention_heads.count;  // heads of a rank
  const int64_t query_size = rows * most * rank, leaf_size = rows * ops::attend_leaf_size(most, rank);
  group.exchange->all_gather({s.queries + group.ranks.rank * query_size, static_cast<size_t>(query_size)},
                             {s.queries, static_cast<size_t>(2 * query_size)});
  for (int64_t of = 0; of < 2; ++of) {
    const int64_t heads = group.parts[static_cast<size_t>(of)].attention_heads.count;
    for_segments(pass, [&](const Segment& segment, const Worker& worker) {
      const ops::SparseAttend attend =
          attend_of(pass, layer, segment, worker, heads, s.queries + of * query_size, s.attended);
      ops::attend_leaf(
          worker.threads, attend, group.ranks.rank,
          group.mine(2 * leaf_size) + of * leaf_size + segment.first_row * ops::attend_leaf_size(heads, rank));
    });
  }
  group.gather(2 * leaf_size);
  const int64_t heads = pass.shape.num_attention_heads;
  for_segments(pass, [&](const Segment& segment, const Worker& worker) {
    const int64_t at = group.ranks.rank * leaf_size + segment.first_row * ops::attend_leaf_size(heads, rank);
    ops::merge_attend_leaves(worker.threads, attend_of(pass, layer, segment, worker, heads, s.queries, s.attended),
                             group.of(0, 2 * leaf_size) + at, group.of(1, 2 * leaf_size) + at);
  });
}

}  // namespace

void dsa_attention(const Pass& pass, const PreparedLayer& layer, int64_t number, const float* x, float* y) {
  const model::DsaWeights& w = *layer.weights->dsa;
  const Scratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const int64_t hidden = shape.hidden_size, rows = pass.rows(), heads = shape.num_attention_heads;

  const std::array<ops::LinearCall, 5> projections{{
      {&w.q_a_proj, x, hidden, s.a, shape.q_lora_rank, pass.compute},
      {&w.kv_a_proj, x, hidden, s.latent, shape.kv_lora_rank, pass.compute},
      {&w.indexer.wk, x, hidden, s.index_k, shape.index_head_dim, pass.compute},
      {&w.indexer.compress_gate, x, hidden, s.index_gate, shape.index_head_dim, pass.compute},
      {&w.indexer.weights_proj, x, hidden, s.index_weights, shape.index_n_heads},  // fp32 (ops/rounding.h)
  }};
  if (pass.probe != nullptr) pass.probe->inputs(number, LinearInput::attention, rows, hidden, x);
  // Rows that reuse a selection score nothing.
  const bool scores = !pass.shared_selection.reuse;
  ops::linear(pass.threads, std::span(projections).first(scores ? 5 : 4), rows);
  normalise(pass, w);
  if (pass.probe != nullptr) pass.probe->latents(number, rows, shape.kv_lora_rank, s.latent);
  if (pass.probe != nullptr) pass.probe->inputs(number, LinearInput::query, rows, shape.q_lora_rank, s.a);
  const std::array<ops::LinearCall, 2> queries{{
      {&w.q_b_proj, s.a, shape.q_lora_rank, s.query, heads * shape.qk_nope_head_dim, pass.compute},
      {&w.indexer.wq_b, s.a, shape.q_lora_rank, s.index_q, shape.index_n_heads * shape.index_head_dim, pass.compute},
  }};
  ops::linear(pass.threads, std::span(queries).first(scores ? 2 : 1), rows);

  const bool over_ranks = pass.group.pages_are_shared();
  const int64_t most = pass.group.parts[0].attention_heads.count;
  float* absorbed = over_ranks ? s.queries + pass.group.ranks.rank * rows * most * shape.kv_lora_rank : s.absorbed;
  const ops::MlaAbsorb kv_b{&layer.kv_b, heads, shape.qk_nope_head_dim, shape.v_head_dim, rows};
  const int64_t latents = rows * heads * shape.kv_lora_rank;
  ops::mla_absorb_query(pass.threads, kv_b, s.query, absorbed);
  ops::round_values(pass.threads, pass.compute, ops::RoundingPoint::absorbed, absorbed, latents);
  for_segments(pass, [&](const Segment& segment, const Worker& worker) {
    store(pass, layer, segment, worker);
    if (over_ranks) return;
    select(pass, layer, segment, worker);
    ops::sparse_attend(worker.threads, attend_of(pass, layer, segment, worker, heads, absorbed, s.attended));
  });
  if (over_ranks) {
    select_over_ranks(pass, layer);
    attend_over_ranks(pass, layer);
  }
  show_selection(pass, number);
  ops::round_values(pass.threads, pass.compute, ops::RoundingPoint::attended, s.attended, latents);
  ops::mla_expand_value(pass.threads, kv_b, s.attended, s.value);
  ops::round_values(pass.threads, pass.compute, ops::RoundingPoint::linear, s.value, rows * heads * shape.v_head_dim);
  if (pass.probe != nullptr)
    pass.probe->inputs(number, LinearInput::attention_output, rows, heads * shape.v_head_dim, s.value);
  project_heads(pass.threads, pass.group, w.o_proj, s.value, pass.group.parts[1].attention_heads.count > 0, rows, y,
                pass.compute);
}

}  // namespace tandem::forward
