// The text model top to bottom (spec/model.md 2.1, 6.1).
#include "forward/text_model.h"

#include <algorithm>
#include <utility>

#include "forward/text_model_state.h"
#include "model/split.h"
#include "ops/embed/embed.h"
#include "ops/linear/linear.h"
#include "ops/mhc/mhc.h"
#include "ops/norm/norm.h"
#include "ops/row_tasks.h"

namespace tandem::forward {
namespace {

int64_t count_kda(const model::Shape& shape) {
  return std::count(shape.layer_types.begin(), shape.layer_types.end(), model::AttentionKind::kda);
}

int64_t count_mtp(const model::Shape& shape, bool mtp) { return mtp ? shape.num_nextn_predict_layers : 0; }

// Layers with token caches: DSA layers and the MTP layer.
int64_t count_cached(const model::Shape& shape, bool mtp) {
  return shape.num_hidden_layers - count_kda(shape) + count_mtp(shape, mtp);
}

// Without what the checkpoint does not have.
Capacity capacity_for(const model::TextWeights& weights, Capacity capacity) {
  capacity.mtp = capacity.mtp && weights.mtp.has_value();
  return capacity;
}

// Of the layers whose caches there are: a calibration knows the MTP layer, too.
std::vector<float> own_scales(const model::Shape& shape, const Capacity& capacity) {
  std::vector<float> scales = capacity.latent_scales;
  const int64_t all = count_cached(shape, shape.num_nextn_predict_layers > 0);
  if (std::ssize(scales) == all) scales.resize(static_cast<size_t>(count_cached(shape, capacity.mtp)));
  return scales;
}

// This rank's part, its F32 matrices replaced by `rounded` in bf16 mode. None where that is the whole model as it is.
std::optional<model::TextWeights> own_part(const model::Shape& whole, const model::TextWeights& weights,
                                           const Ranks& ranks, Compute compute, RoundedMatrices& rounded) {
  std::optional<model::TextWeights> own;
  if (compute == Compute::bf16 && rounded_bytes(whole, weights) > 0) rounded.replace(whole, own.emplace(weights));
  if (ranks.tensor_parallel_size == 1) return own;
  return model::split(own ? *own : weights, whole, ranks.rank, ranks.tensor_parallel_size);
}

}  // namespace

// `whole` and `w`: of all ranks.
TextModel::State::State(const model::Shape& whole, const model::TextWeights& w, device::Threads& t, const Capacity& c,
                        Mutation m, const Group& g, const DrafterModel& d)
    : StepBook(capacity_for(w, c), whole.vocab_size),
      group(g),
      shape(model::shape_of_rank(whole, g.ranks.rank, g.ranks.tensor_parallel_size)),
      own_weights(own_part(whole, w, g.ranks, c.compute, rounded)),
      weights(own_weights ? *own_weights : w),
      threads(t),
      mutation(m),
      pool(shape, count_cached(shape, capacity.mtp), c.pages, c.page_rows, c.cache_type, own_scales(shape, capacity)),
      slots(shape, count_kda(shape), count_cached(shape, capacity.mtp), c.slots),
      kept(shape, count_kda(shape), count_cached(shape, capacity.mtp), count_mtp(shape, capacity.mtp), c.kept_states),
      expert_scratch(forward::expert_scratch(whole, c.max_rows, g.ranks)) {
  Arena arena;
  scratch.lay_out(arena, whole, capacity, threads.count(), group.ranks);
  memory = device::HostMemory(arena.used(), "activations", "a smaller --max-num-batched-tokens");
  arena.start_at(memory.data());
  scratch.lay_out(arena, whole, capacity, threads.count(), group.ranks);
  group.buffer = scratch.exchange;
  int64_t kda = 0, cached = 0;
  for (const model::LayerWeights& layer : weights.layers)
    layers.push_back(prepare_layer(layer, shape, layer.kda ? kda++ : cached++));
  if (capacity.mtp) mtp_layer.push_back(prepare_layer(weights.mtp->layer, shape, cached));
  if (d.shape != nullptr) drafter = std::make_unique<Dflash2>(d, whole, capacity, threads);
}

Pass TextModel::State::pass(const Step& step, Probe* probe) {
  return {threads, shape, step,     scratch, expert_scratch, pool,
          slots,   probe, mutation, group,   one_thread,     capacity.compute};
}

// mHC around a sub-layer: x = norm(collapse(streams)); y = sub(x); streams = mix(streams, y).
template <typename SubLayer>
void TextModel::State::site(const model::MhcWeights& w, const model::Vector& norm, const SubLayer& sub_layer) {
  ops::MhcEnter enter;
  enter.fn = &w.fn;
  enter.base = w.base.data();
  enter.scale = w.scale.data();
  enter.norm = norm.data();
  enter.n = shape.hc_mult;
  enter.hidden = shape.hidden_size;
  enter.sinkhorn_iters = mutation == Mutation::no_sinkhorn ? 0 : shape.hc_sinkhorn_iters;
  enter.hc_eps = shape.hc_eps;
  enter.rms_norm_eps = shape.rms_norm_eps;
  enter.streams = scratch.streams;
  enter.rows = rows;
  enter.mapping = scratch.mapping;
  enter.post = scratch.post;
  enter.comb = scratch.comb;
  enter.x = scratch.x;
  enter.compute = capacity.compute;
  ops::mhc_enter(threads, enter);
  if (mutation == Mutation::transposed_mixer) transpose_comb();
  sub_layer(scratch.x, scratch.y);
  ops::mhc_leave(threads, {shape.hc_mult, shape.hidden_size, scratch.streams, scratch.y, scratch.post, scratch.comb,
                           rows, capacity.compute});
}

void TextModel::State::transpose_comb() {
  const int64_t n = shape.hc_mult;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < i; ++j)
        std::swap(scratch.comb[(row * n + i) * n + j], scratch.comb[(row * n + j) * n + i]);
    }
  }
}

void TextModel::State::run_layer(const Pass& pass, int64_t number) {
  const PreparedLayer& layer = layers[static_cast<size_t>(number)];
  const model::LayerWeights& w = *layer.weights;
  site(*w.hc_attn, w.input_layernorm, [&](const float* x, float* y) {
    if (w.kda) {
      kda_attention(pass, layer, number, x, y);
    } else {
      dsa_attention(pass, layer, number, x, y);
    }
  });
  site(*w.hc_ffn, w.post_attention_layernorm,
       [&](const float* x, float* y) { feed_forward(pass, layer, number, x, y); });
  if (drafter != nullptr) drafter->tap(number, shape.hc_mult, scratch.streams);
  if (pass.probe != nullptr) pass.probe->streams(number, rows, scratch.streams);
}

// z = RMSNorm(mean of the streams): the parameter-free collapse.
void TextModel::State::collapse() {
  const int64_t hidden = shape.hidden_size, n = shape.hc_mult;
  ops::for_rows(threads, rows, 16, [&](int64_t row) {
    const float* streams = scratch.streams + row * n * hidden;
    float* z = scratch.hidden + row * hidden;
    for (int64_t d = 0; d < hidden; ++d) {
      float sum = streams[d];
      for (int64_t s = 1; s < n; ++s) sum += streams[s * hidden + d];
      z[d] = sum / static_cast<float>(n);
    }
    ops::rms_norm(z, weights.norm.data(), shape.rms_norm_eps, hidden, z);
    ops::round_values(capacity.compute, ops::RoundingPoint::norm, z, hidden);
  });
}

// Logits of the wanted rows of `hidden`, then, for text rows, of the head rows of step.head_slots.
void TextModel::State::head(const Step& step, const float* hidden, float* logits, bool text) {
  const int64_t width = shape.hidden_size;
  float* to = scratch.logit_hidden;
  for (const int32_t row : step.logit_rows) to = std::copy_n(hidden + row * width, width, to);
  if (text) {
    for (const int32_t slot : step.head_slots)
      to = std::copy_n(slots.head_row(slot, end[static_cast<size_t>(slot)] - 1), width, to);
  }
  head_rows((to - scratch.logit_hidden) / width, logits);
}

// Logits of the first `count` rows of logit_hidden, the vocabulary's parts side by side.
void TextModel::State::head_rows(int64_t count, float* logits) {
  if (group.alone()) return ops::linear(threads, weights.lm_head, scratch.logit_hidden, logits, count);
  if (count == 0) return;
  const int64_t size = count * group.parts[0].vocabulary.count;
  ops::linear(threads, weights.lm_head, scratch.logit_hidden, group.mine(size), count);
  group.gather(size);
  for (int64_t rank = 0; rank < 2; ++rank) {
    const model::Part& part = group.parts[static_cast<size_t>(rank)].vocabulary;
    const float* from = group.of(rank, size);
    for (int64_t i = 0; i < count; ++i)
      std::copy_n(from + i * part.count, part.count, logits + i * shape.vocab_size + part.first);
  }
}

// The embedding rows of the tokens, each `copies` times, from the rank that has them.
void TextModel::State::embed(std::span<const int32_t> tokens, int64_t copies, float* out, int64_t out_stride) {
  if (group.alone()) return ops::embed(weights.embed_tokens, tokens, copies, out, out_stride);
  const int64_t width = shape.hidden_size, size = std::ssize(tokens) * width;
  ops::embed_own(weights.embed_tokens, group.own().vocabulary.first, tokens, group.mine(size));
  group.gather(size);
  for (int64_t row = 0; row < std::ssize(tokens); ++row) {
    const int64_t owner = group.parts[0].vocabulary.holds(tokens[static_cast<size_t>(row)]) ? 0 : 1;
    for (int64_t c = 0; c < copies; ++c)
      std::copy_n(group.of(owner, size) + row * width, width, out + row * out_stride + c * width);
  }
}

// After the rows of a segment: its block, its length and its last head rows.
void TextModel::State::commit(const Segment& segment) {
  slots.set_kda_block(segment.slot, ops::kda_block_after(slots.kda_block(segment.slot), segment.position, segment.rows,
                                                         segment.certain_rows));
  ran(segment);
  for (int64_t i = std::max<int64_t>(0, segment.rows - cache::ring_rows); i < segment.rows; ++i) {
    std::copy_n(scratch.hidden + (segment.first_row + i) * shape.hidden_size, shape.hidden_size,
                slots.head_row(segment.slot, segment.position + i));
  }
}

void TextModel::State::run(const Step& step, Probe* probe) {
  if (!step.samples.empty()) bad_step("samples of a model on a CPU");
  if (drafter != nullptr) drafter->clear_lattices();
  if (step.kind == StepKind::mtp_absorb || step.kind == StepKind::mtp_chain) return run_mtp_step(step, probe);
  if (step.kind == StepKind::dflash2) return run_dflash2(step);
  for (MtpSlot& slot : mtp_slots) slot.start_text_step(!step.tokens.empty());
  run_moves(step);  // checked one by one: what a restore leaves is what the segments must continue
  if (drafter != nullptr) drafter->run_moves(step);
  check(step, true);
  rows = static_cast<int64_t>(step.tokens.size());
  logit_rows = static_cast<int64_t>(step.logit_rows.size() + step.head_slots.size());
  if (rows > 0) run_rows(step, probe);
  head(step, scratch.hidden, scratch.logits, true);
}

void TextModel::State::run_rows(const Step& step, Probe* probe) {
  for (const Segment& segment : step.segments) {
    if (segment.position == 0) slots.reset(segment.slot);
  }
  embed(step.tokens, shape.hc_mult, scratch.streams, shape.hc_mult * shape.hidden_size);
  if (probe != nullptr) probe->embedded(rows, scratch.streams);
  if (drafter != nullptr) drafter->begin_text(step);
  const Pass shared = pass(step, probe);
  for (int64_t number = 0; number < shape.num_hidden_layers; ++number) run_layer(shared, number);
  collapse();
  if (drafter != nullptr) drafter->store_context();
  for (const Segment& segment : step.segments) commit(segment);
}

TextModel::TextModel(const model::Shape& shape, const model::TextWeights& weights, device::Threads& threads,
                     const Capacity& capacity, Mutation mutation, DrafterModel drafter)
    : state_(std::make_unique<State>(shape, weights, threads, capacity, mutation, make_group(shape, {}, nullptr),
                                     drafter)) {}

TextModel::TextModel(const model::Shape& shape, const model::TextWeights& weights, device::Threads& threads,
                     const Capacity& capacity, Ranks ranks, device::Exchange& exchange, Mutation mutation,
                     DrafterModel drafter)
    : state_(std::make_unique<State>(shape, weights, threads, capacity, mutation, make_group(shape, ranks, &exchange),
                                     drafter)) {}

TextModel::~TextModel() = default;

int64_t TextModel::planned_bytes(const model::Shape& shape, const Capacity& capacity, int threads, Ranks ranks,
                                 const model::DrafterShape* drafter) {
  const model::Shape own = model::shape_of_rank(shape, ranks.rank, ranks.tensor_parallel_size);
  Arena arena;
  Scratch scratch{};
  scratch.lay_out(arena, shape, capacity, threads, ranks);
  return arena.used() + expert_scratch_bytes(shape, capacity.max_rows, ranks) +
         cache::TokenPool::bytes(own, count_cached(own, capacity.mtp), capacity.pages, capacity.page_rows,
                                 capacity.cache_type) +
         capacity.slots * cache::Slots::bytes_of_slot(own, count_kda(own), count_cached(own, capacity.mtp)) +
         capacity.kept_states * kept_state_bytes(shape, ranks, capacity.mtp) +
         (drafter != nullptr ? Dflash2::bytes(*drafter, capacity, threads) : 0);
}

int64_t TextModel::kept_state_bytes(const model::Shape& shape, Ranks ranks, bool mtp,
                                    const model::DrafterShape* drafter, CacheType cache_type) {
  const model::Shape own = model::shape_of_rank(shape, ranks.rank, ranks.tensor_parallel_size);
  return cache::KeptStates::bytes_of_record(own, count_kda(own), count_cached(own, mtp)) +
         (drafter != nullptr ? Dflash2::record_bytes(*drafter, cache_type) : 0);
}

void TextModel::run(const Step& step, Probe* probe) { state_->run(step, probe); }

std::span<const float> TextModel::logits() const {
  return {state_->scratch.logits, static_cast<size_t>(state_->logit_rows * state_->shape.vocab_size)};
}

std::span<const float> TextModel::hidden() const {
  return {state_->scratch.hidden, static_cast<size_t>(state_->rows * state_->shape.hidden_size)};
}

DraftLattices TextModel::lattices() const {
  return state_->drafter != nullptr ? state_->drafter->lattices() : DraftLattices{};
}

void TextModel::read_kda_state(int32_t slot, int64_t kda_layer, std::span<float> state, std::span<float> conv) const {
  State& s = *state_;
  const int64_t length = s.end[static_cast<size_t>(slot)];
  ops::kda_materialise(s.slots.kda(slot, kda_layer), s.shape.kda_num_heads, s.shape.kda_head_dim, length, state.data());
  const int64_t channels = 3 * s.shape.kda_width(), kept = s.shape.short_conv_kernel_size - 1;
  const float* ring = s.slots.conv_ring(slot, kda_layer);
  for (int64_t i = 0; i < kept; ++i) {
    const int64_t position = length - kept + i;
    for (int64_t c = 0; c < channels; ++c) {
      conv[static_cast<size_t>(c * kept + i)] = position < 0 ? 0.0f : ring[position % cache::ring_rows * channels + c];
    }
  }
}

void TextModel::run_mtp(const Step& step, std::span<const float> hidden_rows, bool zero_first_embedding, Probe* probe) {
  state_->run_mtp(step, hidden_rows, zero_first_embedding, probe);
}

std::span<const float> TextModel::mtp_hidden() const {
  return {state_->scratch.mtp_hidden, static_cast<size_t>(state_->mtp_rows * state_->shape.hidden_size)};
}

std::span<const float> TextModel::mtp_logits() const { return logits(); }

}  // namespace tandem::forward
