// The drafter's memory on a GPU, and its context rows (spec/speculation.md 1.3, 1.4).
#include "forward/gpu_dflash2.h"

#include <algorithm>
#include <limits>

#include "forward/gpu_uploader.h"
#include "ops/rope/rope.h"

namespace tandem::forward {
namespace {

constexpr int64_t dflash2_arena_alignment = 256;

ops::ExpertShape mlp_shape(const model::DrafterShape& s) {
  ops::ExpertShape shape;
  shape.hidden = s.hidden_size;
  shape.shared_width = shape.shared_leaf = s.intermediate_size;
  shape.swiglu_limit = std::numeric_limits<float>::infinity();
  return shape;
}

struct Loaded {
  std::vector<GpuDrafterLayer> layers;
  ops::CudaMatrix fc, hidden_projection, predecessor, successor;
  const float *hidden_norm, *norm, *frequencies;
};

Loaded lay_out_weights(GpuUploader& up, const model::DrafterShape& shape, const model::DrafterWeights& w) {
  Loaded out{};
  for (const model::DrafterLayer& layer : w.layers) {
    GpuDrafterLayer to{};
    to.input_layernorm = up.floats(layer.input_layernorm);
    to.post_attention_layernorm = up.floats(layer.post_attention_layernorm);
    to.q_norm = up.floats(layer.q_norm);
    to.k_norm = up.floats(layer.k_norm);
    to.q_proj = up.matrix(layer.q_proj, "q_proj");
    to.k_proj = up.matrix(layer.k_proj, "k_proj");
    to.v_proj = up.matrix(layer.v_proj, "v_proj");
    to.o_proj = up.matrix(layer.o_proj, "o_proj");
    to.mlp = {up.matrix(layer.gate_proj, "gate_proj").data, up.matrix(layer.up_proj, "up_proj").data,
              up.matrix(layer.down_proj, "down_proj").data};
    to.attention_base = up.floats(layer.attention_conv.base_kernel);
    to.attention_delta = up.matrix(layer.attention_conv.kernel_projection, "attention_conv.kernel_projection");
    to.mlp_base = up.floats(layer.mlp_conv.base_kernel);
    to.mlp_delta = up.matrix(layer.mlp_conv.kernel_projection, "mlp_conv.kernel_projection");
    out.layers.push_back(to);
  }
  out.fc = up.matrix(w.fc, "fc");
  out.hidden_norm = up.floats(w.hidden_norm);
  out.norm = up.floats(w.norm);
  out.hidden_projection = up.matrix(w.hidden_projection, "hidden_projection");
  out.predecessor = up.matrix(w.predecessor_codebook, "predecessor_codebook");
  out.successor = up.matrix(w.successor_codebook, "successor_codebook");
  std::vector<float> frequencies(static_cast<size_t>(shape.head_dim / 2));
  ops::rope_frequencies(shape.rope_theta, shape.head_dim, frequencies.data());
  out.frequencies = up.floats(frequencies);
  return out;
}

int64_t weight_bytes(const model::DrafterShape& shape, const model::DrafterWeights& weights) {
  GpuUploader counter;
  lay_out_weights(counter, shape, weights);
  return counter.used();
}

}  // namespace

void GpuDflash2::Work::lay_out(Arena& arena, const model::DrafterShape& s, const Capacity& c) {
  const int64_t step = c.max_rows, hidden = s.hidden_size;
  const int64_t rows = c.slots * s.block_size, drafts = c.slots * s.draft_rows(),
                keys = s.num_hidden_layers * s.key_width();
  const auto values = [&arena](int64_t count) { return arena.take<bf16>(count); };
  const auto floats = [&arena](int64_t count) { return arena.take<float>(count); };
  taps = values(step * s.taps() * hidden);
  context = values(step * hidden);
  key = values(step * keys);
  value = values(step * keys);
  for (bf16** piece : {&x, &normed, &a, &y}) *piece = values(rows * hidden);
  delta = values(rows * 2 * model::DrafterShape::conv_taps * s.groups());
  query = values(rows * s.query_width());
  attended = values(rows * s.query_width());
  block_key = values(rows * s.key_width());
  block_value = values(rows * s.key_width());
  h = values(drafts * hidden);
  g = values(drafts * s.selector_rank);
  logits = floats(drafts * s.vocab_size);
  // What the host reads lies together.
  ids = arena.take<int32_t>(drafts * s.selector_top_k);
  unary = floats(drafts * s.selector_top_k);
  edges = floats(drafts * s.selector_top_k * s.selector_top_k);
  ops::BlockAttendArgs shape{};
  shape.block_rows = static_cast<int32_t>(s.block_size);
  shape.heads = static_cast<int32_t>(s.num_attention_heads);
  shape.kv_heads = static_cast<int32_t>(s.num_key_value_heads);
  shape.window = static_cast<int32_t>(s.sliding_window);
  shape.ring_rows = static_cast<int32_t>(s.ring_rows());
  attend = arena.take<std::byte>(ops::CudaBlockAttend::scratch_bytes(shape, s.head_dim, c.slots));
  select = arena.take<std::byte>(ops::CudaDraftSelect::scratch_bytes(drafts, s.vocab_size, s.selector_top_k));
  mlp = arena.take<std::byte>(ops::CudaExperts::scratch_bytes(mlp_shape(s), rows));
}

GpuDflash2::GpuDflash2(device::Gpu& gpu, const std::vector<std::string>& defines, const DrafterModel& model,
                       const model::Shape& target, const Capacity& capacity, const GpuOps& ops, const GpuStep& step)
    : gpu_(gpu),
      s_(*model.shape),
      capacity_(capacity),
      ops_(ops),
      step_(step),
      attend_(gpu, defines, s_.head_dim),
      conv_(gpu, defines),
      select_(gpu, defines),
      rope_(gpu, defines),
      ring_(gpu, s_, capacity.slots, capacity.kept_states),
      weights_memory_(gpu.allocate(weight_bytes(s_, *model.weights), "weights of the drafter")) {
  model::check_drafter_fits(s_, target, "drafter");
  load(*model.weights);
  Arena arena(dflash2_arena_alignment);
  w_.lay_out(arena, s_, capacity);
  memory_ = gpu.allocate(arena.used(), "activations of the drafter");
  arena.start_at(memory_.data());
  w_.lay_out(arena, s_, capacity);
  const int64_t drafts = capacity.slots * s_.draft_rows(), k = s_.selector_top_k;
  host_ = gpu.allocate_pinned(drafts * k * (8 + 4 * k), "lattices of the drafter");
}

void GpuDflash2::load(const model::DrafterWeights& weights) {
  GpuUploader up(gpu_, weights_memory_.data());
  const Loaded loaded = lay_out_weights(up, s_, weights);
  layers_ = loaded.layers;
  fc_ = loaded.fc;
  hidden_projection_ = loaded.hidden_projection;
  predecessor_ = loaded.predecessor;
  successor_ = loaded.successor;
  hidden_norm_ = loaded.hidden_norm;
  norm_ = loaded.norm;
  frequencies_ = loaded.frequencies;
}

int64_t GpuDflash2::bytes(const model::DrafterShape& shape, const model::DrafterWeights* weights,
                          const Capacity& capacity) {
  Arena arena(dflash2_arena_alignment);
  Work work{};
  work.lay_out(arena, shape, capacity);
  return arena.used() + (weights != nullptr ? weight_bytes(shape, *weights) : 0) +
         cache::GpuContextRing::bytes(shape, capacity.slots, capacity.kept_states);
}

void GpuDflash2::norm(const bf16* x, const float* weight, bf16* y, const int32_t* rows, int64_t max_rows) const {
  const int64_t hidden = s_.hidden_size;
  const ops::NormPart part{x, y, weight, nullptr, hidden, hidden, static_cast<int32_t>(hidden), s_.rms_norm_eps};
  ops_.norm.run({&part, 1}, rows, max_rows);
}

void GpuDflash2::queue_tap(int64_t layer, const bf16* streams, int64_t max_rows) const {
  const auto found = std::find(s_.target_layer_ids.begin(), s_.target_layer_ids.end(), layer);
  if (found == s_.target_layer_ids.end()) return;
  const int64_t hidden = s_.hidden_size;
  ops_.mhc.collapse(streams, nullptr, step_.context_rows(), step_.context_count(),
                    w_.taps + (found - s_.target_layer_ids.begin()) * hidden, s_.taps() * hidden, max_rows);
}

// Taps → fc → norm → keys and values of every layer, into the slots' rings.
void GpuDflash2::queue_context(int64_t max_rows) const {
  const int64_t hidden = s_.hidden_size, taps = s_.taps() * hidden, keys = s_.key_width();
  const int64_t all_keys = s_.num_hidden_layers * keys;
  const int32_t* count = step_.context_count();
  const ops::CudaLinearCall fc{fc_, w_.taps, taps, w_.context, hidden, false};
  ops_.linear.run({&fc, 1}, count, max_rows);
  norm(w_.context, hidden_norm_, w_.context, count, max_rows);
  std::vector<ops::CudaLinearCall> calls;
  std::vector<ops::RopePart> parts;
  for (size_t i = 0; i < layers_.size(); ++i) {
    bf16 *key = w_.key + static_cast<int64_t>(i) * keys, *value = w_.value + static_cast<int64_t>(i) * keys;
    calls.push_back({layers_[i].k_proj, w_.context, hidden, key, all_keys, false});
    calls.push_back({layers_[i].v_proj, w_.context, hidden, value, all_keys, false});
    bf16* ring = ring_.layer(static_cast<int64_t>(i));
    const auto heads = static_cast<int32_t>(s_.num_key_value_heads);
    parts.push_back({key, ring, layers_[i].k_norm, all_keys, ring_.row_values(), heads});
    parts.push_back({value, ring + keys, nullptr, all_keys, ring_.row_values(), heads});
  }
  for (size_t first = 0; first < calls.size(); first += ops::LinearArgs::max_calls) {
    const size_t some = std::min<size_t>(ops::LinearArgs::max_calls, calls.size() - first);
    ops_.linear.run(std::span(calls).subspan(first, some), count, max_rows);
  }
  ops::RopeArgs args{};
  args.rows = count;
  args.positions = step_.context_positions();
  args.rows_of_position = 1;
  args.slots = step_.context_slots();
  args.slot_stride = ring_.slot_stride();
  args.ring_rows = static_cast<int32_t>(s_.ring_rows());
  args.eps = s_.rms_norm_eps;
  args.frequencies = frequencies_;
  for (size_t first = 0; first < parts.size(); first += ops::RopeArgs::max_parts) {
    const size_t some = std::min<size_t>(ops::RopeArgs::max_parts, parts.size() - first);
    rope_.run(args, std::span(parts).subspan(first, some), max_rows);
  }
}

void GpuDflash2::queue_moves(const Step& step) {
  for (const StateMove& move : step.keeps) ring_.save(move.slot, move.length, move.record);
  for (const StateMove& move : step.restores) ring_.restore(move.record, move.length, move.slot);
}

}  // namespace tandem::forward
