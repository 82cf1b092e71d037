// A pass over the blocks of all streams at once, and the lattice that it leaves (spec/speculation.md 1.5, 1.6).
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "forward/dflash2.h"
#include "ops/block_attend/block_attend.h"
#include "ops/block_conv/block_conv.h"
#include "ops/draft_select/draft_select.h"
#include "ops/linear/linear.h"
#include "ops/simd/kernels.h"

namespace tandem::forward {

void Dflash2::run_blocks(const Step& step) {
  streams_ = std::ssize(step.segments);
  positions_.clear();
  block_positions_.clear();
  block_slots_.clear();
  context_rows_.clear();
  const int64_t hidden = s_.hidden_size;
  for (const Segment& segment : step.segments) {
    float* block = w_.x + std::ssize(block_slots_) * block_stride();
    for (int64_t r = 0; r < s_.block_size; ++r) {
      positions_.push_back(segment.position + r);
      if (r > 0) std::copy_n(w_.mask, hidden, block + r * hidden);
    }
    block_positions_.push_back(segment.position);
    block_slots_.push_back(segment.slot);
  }
  turns_of(positions_);
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    attention(layer);
    mlp(weights_.layers[layer]);
  }
  const int64_t drafts = s_.draft_rows();
  for (int64_t stream = 0; stream < streams_; ++stream)  // row 0 of a block proposes nothing
    norm_rows(w_.x + stream * block_stride() + hidden, weights_.norm, drafts, w_.h + stream * drafts * hidden);
}

void Dflash2::convolve(const std::vector<float>& base, int64_t side, const float* in, float* out, bool accumulate) {
  const int64_t taps = model::DrafterShape::conv_taps;
  ops::BlockConv conv;
  conv.rows = streams_ * s_.block_size;
  conv.block_rows = s_.block_size;
  conv.channels = s_.hidden_size;
  conv.group_size = s_.conv_group_size;
  conv.base = base.data() + side * taps * s_.hidden_size;
  conv.delta = w_.delta + side * taps * s_.groups();
  conv.delta_stride = 2 * taps * s_.groups();
  conv.in = in;
  conv.out = out;
  conv.accumulate = accumulate;
  conv.compute = compute_;
  ops::block_conv(threads_, conv);
}

void Dflash2::attention(size_t layer) {
  const model::DrafterLayer& w = weights_.layers[layer];
  const int64_t rows = streams_ * s_.block_size, hidden = s_.hidden_size;
  norm_rows(w_.x, w.input_layernorm, rows, w_.normed);
  ops::linear(threads_, w.attention_conv.kernel_projection, w_.normed, w_.delta, rows, compute_);
  convolve(w.attention_conv.base_kernel, 0, w_.normed, w_.a, false);
  const std::array calls{
      ops::LinearCall{&w.q_proj, w_.a, hidden, w_.query, s_.query_width(), compute_},
      ops::LinearCall{&w.k_proj, w_.a, hidden, w_.key, s_.key_width(), compute_},
      ops::LinearCall{&w.v_proj, w_.a, hidden, w_.value, s_.key_width(), compute_},
  };
  ops::linear(threads_, calls, rows);
  turn_heads(w.q_norm, s_.num_attention_heads, rows, w_.query);
  turn_heads(w.k_norm, s_.num_key_value_heads, rows, w_.key);
  seen_.clear();
  for (const int32_t slot : block_slots_) seen_.push_back(ring_.rows(slot, static_cast<int64_t>(layer)));
  ops::BlockAttend attend;
  attend.blocks = streams_;
  attend.block_rows = s_.block_size;
  attend.heads = s_.num_attention_heads;
  attend.kv_heads = s_.num_key_value_heads;
  attend.head_dim = s_.head_dim;
  attend.window = s_.sliding_window;
  attend.scale = 1.0f / std::sqrt(static_cast<float>(s_.head_dim));
  attend.q = w_.query;
  attend.k = w_.key;
  attend.v = w_.value;
  attend.context = seen_.data();
  attend.positions = block_positions_.data();
  attend.scratch = w_.attend;
  attend.out = w_.attended;
  ops::block_attend(threads_, attend);
  ops::round_values(threads_, compute_, ops::RoundingPoint::drafter_attention, w_.attended, rows * s_.query_width());
  ops::linear(threads_, w.o_proj, w_.attended, w_.y, rows, compute_);
  convolve(w.attention_conv.base_kernel, 1, w_.y, w_.x, true);
}

void Dflash2::mlp(const model::DrafterLayer& w) {
  const int64_t rows = streams_ * s_.block_size, width = s_.intermediate_size;
  norm_rows(w_.x, w.post_attention_layernorm, rows, w_.normed);
  ops::linear(threads_, w.mlp_conv.kernel_projection, w_.normed, w_.delta, rows, compute_);
  convolve(w.mlp_conv.base_kernel, 0, w_.normed, w_.a, false);
  const std::array calls{
      ops::LinearCall{&w.gate_proj, w_.a, s_.hidden_size, w_.gate, width},
      ops::LinearCall{&w.up_proj, w_.a, s_.hidden_size, w_.up, width},
  };
  ops::linear(threads_, calls, rows);
  constexpr float no_clamp = std::numeric_limits<float>::infinity();
  threads_.run(rows, [&](int64_t i) {
    float* gate = w_.gate + i * width;
    ops::kernels().clamped_swiglu(gate, w_.up + i * width, no_clamp, width, gate);
    ops::round_values(compute_, ops::RoundingPoint::activation, gate, width);
  });
  ops::linear(threads_, w.down_proj, w_.gate, w_.y, rows, compute_);
  convolve(w.mlp_conv.base_kernel, 1, w_.y, w_.x, true);
}

void Dflash2::candidates(int64_t first_row, int64_t rows, const float* logits) {
  const int64_t at = first_row * s_.selector_top_k;
  ops::top_candidates(threads_, logits, rows, s_.vocab_size, s_.selector_top_k, w_.ids + at, w_.unary + at);
}

void Dflash2::finish(const Step& step) {
  ops::linear(threads_, weights_.hidden_projection, w_.h, w_.g, draft_rows(), compute_);
  ops::SelectorEdges edges;
  edges.predecessor = &weights_.predecessor_codebook;
  edges.successor = &weights_.successor_codebook;
  edges.streams = streams_;
  edges.rows = s_.draft_rows();
  edges.top_k = s_.selector_top_k;
  edges.pending = step.tokens.data();
  edges.ids = w_.ids;
  edges.g = w_.g;
  edges.scratch = w_.select;
  edges.edges = w_.edges;
  ops::selector_edges(threads_, edges);
}

DraftLattices Dflash2::lattices() const {
  const auto rows = static_cast<size_t>(draft_rows()), k = static_cast<size_t>(s_.selector_top_k);
  return {streams_,           s_.draft_rows(),      s_.selector_top_k,
          {w_.ids, rows * k}, {w_.unary, rows * k}, {w_.edges, rows * k * k}};
}

}  // namespace tandem::forward
