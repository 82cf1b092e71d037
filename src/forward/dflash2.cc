// The drafter's memory, and its context rows: taps → fc → norm → keys and values of every layer (spec/speculation.md
// 1.3, 1.4).
#include "forward/dflash2.h"

#include <algorithm>
#include <array>

#include "ops/draft_select/draft_select.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"

namespace tandem::forward {

void Dflash2::Work::lay_out(Arena& arena, const model::DrafterShape& s, const Capacity& capacity, int64_t threads) {
  const int64_t step = capacity.max_rows, blocks = capacity.slots * s.block_size,
                drafts = capacity.slots * s.draft_rows();
  const int64_t rows = std::max(step, blocks), hidden = s.hidden_size;
  const auto floats = [&arena](int64_t count) { return arena.take<float>(count); };
  frequencies = floats(s.head_dim / 2);
  turns = floats(rows * s.head_dim);
  taps = floats(step * s.taps() * hidden);
  context = floats(step * hidden);
  key = floats(rows * s.key_width());
  value = floats(rows * s.key_width());
  mask = floats(hidden);
  for (float** piece : {&x, &normed, &a, &y}) *piece = floats(blocks * hidden);
  delta = floats(blocks * 2 * model::DrafterShape::conv_taps * s.groups());
  for (float** piece : {&query, &attended}) *piece = floats(blocks * s.query_width());
  for (float** piece : {&gate, &up}) *piece = floats(blocks * s.intermediate_size);
  h = floats(drafts * hidden);
  g = floats(drafts * s.selector_rank);
  attend = floats(threads * ops::block_attend_scratch(s.block_size, s.num_attention_heads, s.num_key_value_heads,
                                                      s.head_dim, s.sliding_window));
  select = floats(threads * ops::selector_scratch(s.selector_top_k, s.selector_rank));
  ids = arena.take<int32_t>(drafts * s.selector_top_k);
  unary = floats(drafts * s.selector_top_k);
  edges = floats(drafts * s.selector_top_k * s.selector_top_k);
}

Dflash2::Dflash2(const DrafterModel& model, const model::Shape& target, const Capacity& capacity,
                 device::Threads& threads)
    : s_(*model.shape),
      weights_(rounded_.replaced(*model.weights, capacity.compute)),
      compute_(capacity.compute),
      taps_in_fp32_(model.taps_in_fp32 && compute_ == Compute::f32),
      threads_(threads),
      ring_(s_, context_element(capacity.cache_type), capacity.slots, capacity.kept_states) {
  model::check_drafter_fits(s_, target, "drafter");
  Arena arena;
  w_.lay_out(arena, s_, capacity, threads.count());
  memory_ = device::HostMemory(arena.used(), "activations of the drafter", "a smaller --max-num-batched-tokens");
  arena.start_at(memory_.data());
  w_.lay_out(arena, s_, capacity, threads.count());
  ops::rope_frequencies(s_.rope_theta, s_.head_dim, w_.frequencies);
  const auto slots = static_cast<size_t>(capacity.slots), rows = static_cast<size_t>(capacity.max_rows);
  context_rows_.reserve(rows);
  positions_.reserve(std::max(rows, slots * static_cast<size_t>(s_.block_size)));
  block_positions_.reserve(slots);
  block_slots_.reserve(slots);
  seen_.reserve(slots);
}

int64_t Dflash2::bytes(const model::DrafterShape& shape, const Capacity& capacity, int64_t threads) {
  Arena arena;
  Work work{};
  work.lay_out(arena, shape, capacity, threads);
  return arena.used() +
         capacity.slots * cache::ContextRing::bytes_of_slot(shape, context_element(capacity.cache_type)) +
         capacity.kept_states * record_bytes(shape, capacity.cache_type);
}

int64_t Dflash2::record_bytes(const model::DrafterShape& shape, CacheType type) {
  return cache::ContextRing::bytes_of_record(shape, context_element(type));
}

void Dflash2::begin_text(const Step& step) {
  context_rows_.clear();
  positions_.clear();
  for (const Segment& segment : step.segments) {
    const int64_t end = segment.position + segment.rows;
    int64_t position = ring_.begin_rows(segment.slot, segment.position, segment.rows, segment.context_from);
    for (; position < end; ++position) {
      const auto row = static_cast<int32_t>(segment.first_row + position - segment.position);
      context_rows_.push_back({row, segment.slot, position});
      positions_.push_back(position);
    }
  }
}

void Dflash2::tap(int64_t layer, int64_t streams_of_row, const float* streams) {
  const auto found = std::find(s_.target_layer_ids.begin(), s_.target_layer_ids.end(), layer);
  if (found == s_.target_layer_ids.end() || context_rows_.empty()) return;
  const int64_t hidden = s_.hidden_size, column = (found - s_.target_layer_ids.begin()) * hidden;
  threads_.run(std::ssize(context_rows_), [&](int64_t i) {
    const float* from = streams + context_rows_[static_cast<size_t>(i)].row * streams_of_row * hidden;
    float* to = w_.taps + i * s_.taps() * hidden + column;
    for (int64_t d = 0; d < hidden; ++d) {
      float sum = from[d];
      for (int64_t n = 1; n < streams_of_row; ++n) sum += from[n * hidden + d];
      to[d] = sum / static_cast<float>(streams_of_row);
    }
    ops::round_values(taps_in_fp32_ ? Compute::f32 : Compute::bf16, ops::RoundingPoint::drafter_tap, to, hidden);
  });
}

void Dflash2::store_context() {
  const int64_t rows = std::ssize(context_rows_);
  if (rows == 0) return;
  ops::linear(threads_, weights_.fc, w_.taps, w_.context, rows, compute_);
  norm_rows(w_.context, weights_.hidden_norm, rows, w_.context);
  turns_of(positions_);
  for (size_t number = 0; number < weights_.layers.size(); ++number) {
    const model::DrafterLayer& w = weights_.layers[number];
    const std::array calls{
        ops::LinearCall{&w.k_proj, w_.context, s_.hidden_size, w_.key, s_.key_width(), compute_},
        ops::LinearCall{&w.v_proj, w_.context, s_.hidden_size, w_.value, s_.key_width(), compute_},
    };
    ops::linear(threads_, calls, rows);
    turn_heads(w.k_norm, s_.num_key_value_heads, rows, w_.key);
    threads_.run(rows, [&](int64_t i) {
      const ContextRow& row = context_rows_[static_cast<size_t>(i)];
      ring_.store(row.slot, static_cast<int64_t>(number), row.position, w_.key + i * s_.key_width(),
                  w_.value + i * s_.key_width());
    });
  }
}

void Dflash2::run_moves(const Step& step) {
  for (const StateMove& move : step.keeps) ring_.save(threads_, move.slot, move.length, move.record);
  for (const StateMove& move : step.restores) ring_.restore(threads_, move.record, move.length, move.slot);
}

void Dflash2::turns_of(std::span<const int64_t> positions) {
  threads_.run(std::ssize(positions), [&](int64_t i) {
    ops::rope_turns(positions.subspan(static_cast<size_t>(i), 1), w_.frequencies, s_.head_dim,
                    w_.turns + i * s_.head_dim);
  });
}

void Dflash2::norm_rows(const float* x, const std::vector<float>& weight, int64_t rows, float* y) {
  threads_.run(rows, [&](int64_t i) {
    ops::rms_norm(x + i * s_.hidden_size, weight.data(), s_.rms_norm_eps, s_.hidden_size, y + i * s_.hidden_size);
    ops::round_values(compute_, ops::RoundingPoint::norm, y + i * s_.hidden_size, s_.hidden_size);
  });
}

// Norm of every head, then its rotation: x [rows, heads, head_dim], row i at position i of the turns.
void Dflash2::turn_heads(const std::vector<float>& norm, int64_t heads, int64_t rows, float* x) {
  threads_.run(rows, [&](int64_t i) {
    for (int64_t head = 0; head < heads; ++head) {
      float* values = x + (i * heads + head) * s_.head_dim;
      ops::rms_norm(values, norm.data(), s_.rms_norm_eps, s_.head_dim, values);
      ops::round_values(compute_, ops::RoundingPoint::norm, values, s_.head_dim);
      ops::rope(w_.turns + i * s_.head_dim, s_.head_dim, values);
      ops::round_values(compute_, ops::RoundingPoint::drafter_rope, values, s_.head_dim);
    }
  });
}

std::span<float> Dflash2::taps() const {
  return {w_.taps, context_rows_.size() * static_cast<size_t>(s_.taps() * s_.hidden_size)};
}

std::span<const float> Dflash2::context() const {
  return {w_.context, context_rows_.size() * static_cast<size_t>(s_.hidden_size)};
}

}  // namespace tandem::forward
