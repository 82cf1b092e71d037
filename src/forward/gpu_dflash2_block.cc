// A pass over the blocks of all streams at once on a GPU, and the lattice that it leaves
// (spec/speculation.md 1.5, 1.6).
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "forward/gpu_dflash2.h"

namespace tandem::forward {

void GpuDflash2::queue_blocks(GpuGroup& group, const ops::CudaMatrix& embed_tokens, const ops::CudaMatrix& lm_head,
                              int64_t max_blocks) const {
  const int64_t hidden = s_.hidden_size, rows = max_blocks * s_.block_size, drafts = max_blocks * s_.draft_rows();
  const ops::StepView& step = step_.view();
  ops::EmbedArgs embed{};
  embed.rows = step.counts + ops::step_rows;
  embed.tokens = step.tokens;
  embed.hidden = static_cast<int32_t>(hidden);
  embed.copies = 1;
  embed.out = w_.x;
  embed.out_stride = hidden;
  group.embed(ops_, embed_tokens, embed, rows);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    queue_attention(layer, max_blocks);
    queue_mlp(layers_[layer], max_blocks);
  }
  norm(w_.x, norm_, w_.normed, step.counts + ops::step_rows, rows);
  ops::MoveRowsArgs gather{};  // row 0 of a block proposes nothing
  gather.count = step_.draft_count();
  gather.sources = step_.draft_sources();
  gather.rows = w_.normed;
  gather.out = w_.h;
  gather.out_stride = hidden;
  gather.width = static_cast<int32_t>(hidden);
  ops_.rows.gather(gather, drafts);
  group.head(ops_, lm_head, w_.h, w_.logits, step_.draft_count(), drafts);
  const ops::CudaLinearCall projection{hidden_projection_, w_.h, hidden, w_.g, s_.selector_rank, false};
  ops_.linear.run({&projection, 1}, step_.draft_count(), drafts);
  ops::TopCandidatesArgs top{};
  top.rows = step_.draft_count();
  top.logits = w_.logits;
  top.logits_stride = s_.vocab_size;
  top.vocab_size = static_cast<int32_t>(s_.vocab_size);
  top.count = static_cast<int32_t>(s_.selector_top_k);
  top.ids = w_.ids;
  top.values = w_.unary;
  select_.top_candidates(top, drafts, w_.select);
  ops::SelectorEdgesArgs edges{};
  edges.streams = step.counts + ops::step_segments;
  edges.rows = static_cast<int32_t>(s_.draft_rows());
  edges.top_k = static_cast<int32_t>(s_.selector_top_k);
  edges.rank = static_cast<int32_t>(s_.selector_rank);
  edges.predecessor = predecessor_.data;
  edges.successor = successor_.data;
  edges.pending = step_.pending();
  edges.ids = w_.ids;
  edges.g = w_.g;
  edges.edges = w_.edges;
  select_.edges(edges, max_blocks);
}

void GpuDflash2::convolve(const float* base, int64_t side, const bf16* in, bf16* out, bool accumulate,
                          int64_t blocks) const {
  const int64_t taps = model::DrafterShape::conv_taps;
  ops::BlockConvArgs conv{};
  conv.blocks = step_.view().counts + ops::step_segments;
  conv.block_rows = static_cast<int32_t>(s_.block_size);
  conv.channels = static_cast<int32_t>(s_.hidden_size);
  conv.group_size = static_cast<int32_t>(s_.conv_group_size);
  conv.base = base + side * taps * s_.hidden_size;
  conv.delta = w_.delta + side * taps * s_.groups();
  conv.delta_stride = 2 * taps * s_.groups();
  conv.in = in;
  conv.out = out;
  conv.accumulate = accumulate ? 1 : 0;
  conv_.run(conv, blocks);
}

ops::BlockAttendArgs GpuDflash2::attend_of(size_t layer) const {
  ops::BlockAttendArgs attend{};
  attend.blocks = step_.view().counts + ops::step_segments;
  attend.segments = step_.view().segments;
  attend.context_first = step_.context_first();
  attend.block_rows = static_cast<int32_t>(s_.block_size);
  attend.heads = static_cast<int32_t>(s_.num_attention_heads);
  attend.kv_heads = static_cast<int32_t>(s_.num_key_value_heads);
  attend.window = static_cast<int32_t>(s_.sliding_window);
  attend.scale = 1.0f / std::sqrt(static_cast<float>(s_.head_dim));
  attend.q = w_.query;
  attend.k = w_.block_key;
  attend.v = w_.block_value;
  attend.q_stride = attend.out_stride = s_.query_width();
  attend.kv_stride = s_.key_width();
  attend.ring = ring_.layer(static_cast<int64_t>(layer));
  attend.slot_stride = ring_.slot_stride();
  attend.ring_rows = static_cast<int32_t>(s_.ring_rows());
  attend.out = w_.attended;
  return attend;
}

void GpuDflash2::queue_attention(size_t number, int64_t blocks) const {
  const GpuDrafterLayer& w = layers_[number];
  const int64_t rows = blocks * s_.block_size, hidden = s_.hidden_size;
  const int32_t* count = step_.view().counts + ops::step_rows;
  norm(w_.x, w.input_layernorm, w_.normed, count, rows);
  const ops::CudaLinearCall delta{
      w.attention_delta, w_.normed, hidden, w_.delta, 2 * model::DrafterShape::conv_taps * s_.groups(), false};
  ops_.linear.run({&delta, 1}, count, rows);
  convolve(w.attention_base, 0, w_.normed, w_.a, false, blocks);
  const std::array calls{
      ops::CudaLinearCall{w.q_proj, w_.a, hidden, w_.query, s_.query_width(), false},
      ops::CudaLinearCall{w.k_proj, w_.a, hidden, w_.block_key, s_.key_width(), false},
      ops::CudaLinearCall{w.v_proj, w_.a, hidden, w_.block_value, s_.key_width(), false},
  };
  ops_.linear.run(calls, count, rows);
  ops::RopeArgs turn{};
  turn.rows = count;
  turn.positions = step_.block_positions();
  turn.rows_of_position = static_cast<int32_t>(s_.block_size);
  turn.eps = s_.rms_norm_eps;
  turn.frequencies = frequencies_;
  const std::array parts{
      ops::RopePart{w_.query, w_.query, w.q_norm, s_.query_width(), s_.query_width(),
                    static_cast<int32_t>(s_.num_attention_heads)},
      ops::RopePart{w_.block_key, w_.block_key, w.k_norm, s_.key_width(), s_.key_width(),
                    static_cast<int32_t>(s_.num_key_value_heads)},
  };
  rope_.run(turn, parts, rows);
  attend_.run(attend_of(number), blocks, w_.attend);
  const ops::CudaLinearCall out{w.o_proj, w_.attended, s_.query_width(), w_.y, hidden, false};
  ops_.linear.run({&out, 1}, count, rows);
  convolve(w.attention_base, 1, w_.y, w_.x, true, blocks);
}

void GpuDflash2::queue_mlp(const GpuDrafterLayer& w, int64_t blocks) const {
  const int64_t rows = blocks * s_.block_size, hidden = s_.hidden_size;
  const int32_t* count = step_.view().counts + ops::step_rows;
  norm(w_.x, w.post_attention_layernorm, w_.normed, count, rows);
  const ops::CudaLinearCall delta{
      w.mlp_delta, w_.normed, hidden, w_.delta, 2 * model::DrafterShape::conv_taps * s_.groups(), false};
  ops_.linear.run({&delta, 1}, count, rows);
  convolve(w.mlp_base, 0, w_.normed, w_.a, false, blocks);
  ops::ExpertShape shape;
  shape.hidden = hidden;
  shape.shared_width = shape.shared_leaf = s_.intermediate_size;
  shape.swiglu_limit = std::numeric_limits<float>::infinity();
  ops::ExpertRows mlp;
  mlp.rows = count;
  mlp.shared = w.mlp;
  mlp.x = w_.a;
  mlp.y = w_.y;
  mlp.x_stride = mlp.y_stride = hidden;
  mlp.scratch = w_.mlp;
  ops_.experts.run(shape, mlp, rows);
  convolve(w.mlp_base, 1, w_.y, w_.x, true, blocks);
}

int64_t GpuDflash2::queue_download(int64_t blocks) {
  blocks_ = blocks;
  const int64_t k = s_.selector_top_k, values = blocks * s_.draft_rows() * k;
  std::byte* to = host_.data();
  gpu_.download(to, w_.ids, values * 4);
  gpu_.download(to + values * 4, w_.unary, values * 4);
  gpu_.download(to + values * 8, w_.edges, values * k * 4);
  return values * (8 + k * 4);
}

DraftLattices GpuDflash2::lattices() const {
  const int64_t k = s_.selector_top_k;
  const auto values = static_cast<size_t>(blocks_ * s_.draft_rows() * k);
  const std::byte* from = host_.data();
  return {blocks_,
          s_.draft_rows(),
          k,
          {reinterpret_cast<const int32_t*>(from), values},
          {reinterpret_cast<const float*>(from + values * 4), values},
          {reinterpret_cast<const float*>(from + values * 8), values * static_cast<size_t>(k)}};
}

}  // namespace tandem::forward
