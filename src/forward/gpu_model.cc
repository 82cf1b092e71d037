// The text model on a GPU, top to bottom (spec/model.md 2.1, 6); text_model.cc and mtp.cc say the same for CPUs.
#include "forward/gpu_model.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/error.h"
#include "cache/token_pool.h"
#include "forward/gpu_model_state.h"
#include "model/split.h"
#include "ops/kda_block/kda_block.h"

namespace tandem::forward {
namespace {

constexpr int64_t arena_alignment = 256;
constexpr std::array<int64_t, 8> graph_sizes = {1, 2, 4, 8, 16, 32, 64, 128};

int64_t count_kda_layers(const model::Shape& shape) {
  return std::count(shape.layer_types.begin(), shape.layer_types.end(), model::AttentionKind::kda);
}
int64_t count_mtp(const model::Shape& shape, const Capacity& c) { return c.mtp ? shape.num_nextn_predict_layers : 0; }
// Layers with token caches.
int64_t count_cached(const model::Shape& shape, const Capacity& c) {
  return shape.num_hidden_layers - count_kda_layers(shape) + count_mtp(shape, c);
}

Capacity gpu_capacity_for(const model::TextWeights& weights, Capacity capacity) {
  capacity.mtp = capacity.mtp && weights.mtp.has_value();
  if (capacity.cache_type == CacheType::f32)
    throw Error(ErrorCode::usage, "--kv-cache-dtype", "f32 with --device cuda",
                "bf16, fp8, fp8_row, nvfp4 or bf16_fp8_index");
  return capacity;
}

// Of the layers whose caches there are: a calibration knows the MTP layer, too.
std::vector<float> scales_of_rank(const model::Shape& shape, const Capacity& capacity) {
  std::vector<float> scales = capacity.latent_scales;
  Capacity with_mtp = capacity;
  with_mtp.mtp = true;
  if (std::ssize(scales) == count_cached(shape, with_mtp))
    scales.resize(static_cast<size_t>(count_cached(shape, capacity)));
  return scales;
}

model::Shape own_shape(const model::Shape& whole, const Ranks& ranks) {
  return model::shape_of_rank(whole, ranks.rank, ranks.tensor_parallel_size);
}
model::TextWeights own_weights(const model::Shape& whole, const model::TextWeights& weights, const Ranks& ranks) {
  return model::split(weights, whole, ranks.rank, ranks.tensor_parallel_size);
}

}  // namespace

GpuModel::State::State(device::Gpu& g, const model::Shape& whole, const model::TextWeights& w, const Capacity& c,
                       const GpuGroup& ranks, DrafterModel d, GpuModelOptions o)
    : StepBook(gpu_capacity_for(w, c), whole.vocab_size),
      gpu(g),
      group(ranks),
      shape(own_shape(whole, ranks.ranks())),
      options(o),
      defines(d.shape != nullptr ? kernel_defines(whole, d.shape->head_dim) : kernel_defines(whole)),
      ops(g, defines, whole),
      weights(g, shape, own_weights(whole, w, ranks.ranks()), capacity.mtp),
      pool(g, defines, shape, count_cached(shape, capacity), capacity.pages, capacity.page_rows, capacity.cache_type,
           scales_of_rank(shape, capacity)),
      slots(g, shape, count_kda_layers(shape), count_cached(shape, capacity), capacity.slots),
      kept(g, defines, shape, count_kda_layers(shape), count_cached(shape, capacity), count_mtp(shape, capacity),
           capacity.kept_states),
      step_block(g, capacity, d.shape != nullptr ? d.shape->block_size : 0),
      kda_blocks(static_cast<size_t>(capacity.slots)) {
  Arena arena(arena_alignment);
  scratch.lay_out(arena, gpu.properties(), shape, capacity);
  memory = gpu.allocate(arena.used(), "activations");
  arena.start_at(memory.data());
  scratch.lay_out(arena, gpu.properties(), shape, capacity);
  host_logits = gpu.allocate_pinned(int64_t{capacity.max_logit_rows} * shape.vocab_size * 4, "logits");
  host_sampled =
      gpu.allocate_pinned(capacity.max_logit_rows * static_cast<int64_t>(sizeof(ops::Sampled)), "sampled tokens");
  const int64_t exchange_bytes = GpuGroup::exchange_bytes(whole, capacity, group.ranks(), d.shape);
  if (!group.alone()) {
    exchanged = gpu.allocate(4 * exchange_bytes, "exchange between ranks");
    group.use(exchanged.data(), exchange_bytes);
  }
  if (d.shape != nullptr) drafter = std::make_unique<GpuDflash2>(gpu, defines, d, shape, capacity, ops, step_block);
  if (options.graphs && group.can_be_captured()) record_graphs();
  gpu.synchronize();
}

GpuPass GpuModel::State::pass(int64_t max_rows) {
  return {ops,
          shape,
          scratch,
          pool,
          slots,
          group,
          step_block.view(),
          max_rows,
          std::min<int64_t>(max_rows, capacity.slots)};
}

void GpuModel::State::record_graphs() {
  std::vector<StepKind> kinds = {StepKind::text};
  if (weights.mtp) kinds.insert(kinds.end(), {StepKind::mtp_absorb, StepKind::mtp_chain});
  if (drafter) kinds.push_back(StepKind::dflash2);
  for (const StepKind kind : kinds) {
    const bool one_row_a_slot = kind == StepKind::mtp_chain || kind == StepKind::dflash2;
    for (const int64_t size : graph_sizes) {
      if (size > (one_row_a_slot ? capacity.slots : capacity.max_rows)) break;
      gpu.begin_capture();
      const int64_t wanted = std::min<int64_t>(size, capacity.max_logit_rows);
      queue(kind, {size, wanted, wanted});
      graphs[{kind, size}] = gpu.end_capture();
    }
  }
}

int64_t GpuModel::State::graph_rows(const Step& step) const {
  if (!step.head_slots.empty()) return 0;
  for (const int64_t size : graph_sizes) {
    if (size >= std::ssize(step.tokens)) return graphs.count({step.kind, size}) > 0 ? size : 0;
  }
  return 0;
}

void GpuModel::State::queue(StepKind kind, const Most& most) {
  if (kind == StepKind::text) return queue_text(most);
  if (kind == StepKind::dflash2) return drafter->queue_blocks(group, weights.embed_tokens, weights.lm_head, most.rows);
  queue_mtp(kind, most);
}

void GpuModel::State::queue_text(const Most& most) {
  if (const int64_t max_rows = most.rows; max_rows > 0) {
    const GpuPass p = pass(max_rows);
    const int64_t hidden = shape.hidden_size, streams = shape.hc_mult * hidden;
    ops::EmbedArgs embed{};
    embed.rows = p.rows();
    embed.tokens = p.step.tokens;
    embed.hidden = static_cast<int32_t>(hidden);
    embed.copies = static_cast<int32_t>(shape.hc_mult);
    embed.out = scratch.streams;
    embed.out_stride = streams;
    group.embed(ops, weights.embed_tokens, embed, max_rows);
    const ops::CudaMhcRows at{p.rows(), scratch.streams, scratch.post, scratch.comb, scratch.mhc};
    ops.mhc.enter(at, weights.layers.front().attn_site, scratch.x, hidden, max_rows);
    for (size_t i = 0; i < weights.layers.size(); ++i) {
      const GpuLayer& layer = weights.layers[i];
      if (layer.kda) {
        kda_attention(p, layer);
      } else {
        dsa_attention(p, layer);
      }
      ops.mhc.leave_and_enter(at, scratch.y, hidden, layer.ffn_site, scratch.x, hidden, max_rows);
      feed_forward(p, layer);
      if (i + 1 == weights.layers.size()) {
        ops.mhc.leave(at, scratch.y, hidden, max_rows);
      } else {
        ops.mhc.leave_and_enter(at, scratch.y, hidden, weights.layers[i + 1].attn_site, scratch.x, hidden, max_rows);
      }
      if (drafter) drafter->queue_tap(static_cast<int64_t>(i), scratch.streams, max_rows);
    }
    if (drafter) drafter->queue_context(max_rows);
    ops.mhc.collapse(scratch.streams, weights.norm, nullptr, p.rows(), scratch.hidden, hidden, max_rows);
    ops.rows.store_head_rows({p.step, scratch.hidden, slots.head_ring(), static_cast<int32_t>(hidden)}, max_rows);
  }
  queue_head(scratch.hidden, most);
}

// Logits of the rows that the step wants, of `hidden` or of the slots' head rows, and tokens of those that have a
// sample.
void GpuModel::State::queue_head(const device::bf16* hidden, const Most& most) {
  if (most.logit_rows == 0) return;
  const ops::SlotView<device::bf16> ring = slots.head_ring();
  ops::MoveRowsArgs gather{};
  gather.count = step_block.logit_count();
  gather.sources = step_block.logit_sources();
  gather.rows = hidden;
  gather.ring = {ring.data, ring.stride};
  gather.out = scratch.logit_hidden;
  gather.out_stride = shape.hidden_size;
  gather.width = static_cast<int32_t>(shape.hidden_size);
  ops.rows.gather(gather, most.logit_rows);
  group.head(ops, weights.lm_head, scratch.logit_hidden, scratch.logits, step_block.logit_count(), most.logit_rows);
  ops::SampleArgs sample{};
  sample.rows = step_block.sample_count();
  sample.params = step_block.samples();
  sample.masked = step_block.masked_tokens();
  sample.logits = scratch.logits;
  sample.logits_stride = shape.vocab_size;
  sample.vocab_size = static_cast<int32_t>(shape.vocab_size);
  sample.out = scratch.sampled;
  ops.sample.run(sample, scratch.sample, most.samples);
}

void GpuModel::State::queue_mtp(StepKind kind, const Most& most) {
  const int64_t max_rows = most.rows;
  const GpuMtp& w = *weights.mtp;
  const bool chain = kind == StepKind::mtp_chain;
  GpuPass p = pass(max_rows);
  if (capacity.mtp_index_share && shape.index_share_for_mtp_iteration)
    p.selection = chain ? GpuPass::Selection::reuse : GpuPass::Selection::leave;
  const int64_t hidden = shape.hidden_size;
  const auto width = static_cast<int32_t>(hidden);
  const auto norm = [&](const device::bf16* x, int64_t x_stride, const float* weight, device::bf16* y,
                        int64_t y_stride) {
    const std::array part{ops::NormPart{x, y, weight, nullptr, x_stride, y_stride, width, shape.rms_norm_eps}};
    ops.norm.run(part, p.rows(), max_rows);
  };
  // u = eh_proj·[RMSNorm(embedding; enorm) ‖ RMSNorm(hidden; hnorm)], embedding half first.
  ops::EmbedArgs embed{};
  embed.rows = p.rows();
  embed.tokens = p.step.tokens;
  embed.hidden = width;
  embed.copies = 1;
  embed.out = scratch.mtp_input;
  embed.out_stride = 2 * hidden;
  group.embed(ops, weights.embed_tokens, embed, max_rows);
  if (capacity.mtp_zero_first_embedding) ops.rows.zero_first({p.step, scratch.mtp_input, 2 * hidden, width}, max_rows);
  const ops::SlotView<device::bf16> ring = slots.head_ring();
  ops::MoveRowsArgs gather{p.rows(),
                           step_block.hidden_sources(),
                           scratch.hidden,
                           {ring.data, ring.stride},
                           scratch.mtp_last_hidden,
                           scratch.mtp_input + hidden,
                           2 * hidden,
                           width};
  ops.rows.gather(gather, max_rows);
  norm(scratch.mtp_input, 2 * hidden, w.enorm, scratch.mtp_input, 2 * hidden);
  norm(scratch.mtp_input + hidden, 2 * hidden, w.hnorm, scratch.mtp_input + hidden, 2 * hidden);
  const std::array join{ops::CudaLinearCall{w.eh_proj, scratch.mtp_input, 2 * hidden, scratch.mtp_x, hidden, false}};
  ops.linear.run(join, p.rows(), max_rows);

  norm(scratch.mtp_x, hidden, w.layer.input_layernorm, scratch.x, hidden);
  dsa_attention(p, w.layer);
  ops.rows.add({p.rows(), scratch.y, scratch.mtp_x, width}, max_rows);
  norm(scratch.mtp_x, hidden, w.layer.post_attention_layernorm, scratch.x, hidden);
  feed_forward(p, w.layer);
  ops.rows.add({p.rows(), scratch.y, scratch.mtp_x, width}, max_rows);
  norm(scratch.mtp_x, hidden, w.shared_head_norm, scratch.mtp_hidden, hidden);
  ops.rows.store_last_rows({p.step, scratch.mtp_hidden, scratch.mtp_last_hidden, width}, p.max_segments);
  queue_head(scratch.mtp_hidden, most);
}

void GpuModel::State::run_moves(const Step& step) {
  for (const StateMove& move : step.keeps) {
    check_keep(move);
    kept.save(slots, move.slot, move.length, move.record);
  }
  for (const StateMove& move : step.restores) {
    check_slot(move.slot);
    check_record(move.record);
    check_restore(move, kept.length(move.record));
    kept.restore(move.record, slots, move.slot);
    restored(move);
  }
  for (const PageCopy& copy : step.page_copies) {
    check_copy(copy, 1);
    pool.copy_page(copy.from, copy.to, copy.rows);
  }
}

// As a graph if there is one, else launch by launch.
void GpuModel::State::run_queued(const Step& step) {
  if (const int64_t size = graph_rows(step); size > 0) {
    gpu.replay(graphs.at({step.kind, size}));
    ++graph_steps;
  } else {
    queue(step.kind, {std::ssize(step.tokens), logit_rows, samples});
    ++launched_steps;
  }
}

void GpuModel::State::queue_results(const Step& step) {
  whole_rows = 0;
  const auto take = [&](int64_t first, int64_t past) {
    if (first == past) return;
    const int64_t row_bytes = shape.vocab_size * 4, bytes = (past - first) * row_bytes;
    gpu.download(host_logits.data() + whole_rows * row_bytes, scratch.logits + first * shape.vocab_size, bytes);
    whole_rows += past - first;
    result_bytes += bytes;
  };
  int64_t next = 0;
  for (const RowSample& sample : step.samples) {
    take(next, sample.row);
    next = sample.row + 1;
  }
  take(next, logit_rows);
  if (samples == 0) return;
  const int64_t bytes = samples * static_cast<int64_t>(sizeof(ops::Sampled));
  gpu.download(host_sampled.data(), scratch.sampled, bytes);
  result_bytes += bytes;
}

void GpuModel::State::run_blocks(const Step& step) {
  check_dflash2(step, drafter != nullptr);
  logit_rows = samples = whole_rows = 0;
  step_block.upload_blocks(step, drafter->book(), drafter->shape().block_size, drafter->shape().mask_token_id);
  run_queued(step);
  result_bytes += drafter->queue_download(std::ssize(step.segments));
  gpu.synchronize();
}

void GpuModel::State::run(const Step& step) {
  if (step.kind == StepKind::dflash2) return run_blocks(step);
  const bool text = step.kind == StepKind::text;
  if (drafter) drafter->clear_lattices();
  if (text) {
    for (MtpSlot& slot : mtp_slots) slot.start_text_step(!step.tokens.empty());
    run_moves(step);  // checked one by one: what a restore leaves is what the segments must continue
    if (drafter) drafter->queue_moves(step);
  } else if (!weights.mtp) {
    bad_step("an MTP step without an MTP layer");
  }
  check(step, text);
  if (!text) check_hidden_rows(step);
  for (size_t slot = 0; slot < kda_blocks.size(); ++slot)
    kda_blocks[slot] = slots.kda_block(static_cast<int64_t>(slot));
  step_block.upload(step, *this, kda_blocks, drafter ? &drafter->book() : nullptr);
  logit_rows = std::ssize(step.logit_rows) + std::ssize(step.head_slots);
  samples = std::ssize(step.samples);
  if (text) rows = std::ssize(step.tokens);
  run_queued(step);
  queue_results(step);
  gpu.synchronize();
  for (const Segment& segment : step.segments) {
    if (!text) {
      ran_mtp(segment, step.kind);
      continue;
    }
    const int64_t before = segment.position == 0 ? 0 : slots.kda_block(segment.slot);
    slots.set_kda_block(segment.slot,
                        ops::kda_block_after(before, segment.position, segment.rows, segment.certain_rows));
    ran(segment);
  }
}

GpuModel::GpuModel(device::Gpu& gpu, const model::Shape& shape, const model::TextWeights& weights,
                   const Capacity& capacity, DrafterModel drafter, GpuModelOptions options)
    : state_(std::make_unique<State>(gpu, shape, weights, capacity, GpuGroup(shape, {}, nullptr), drafter, options)) {}

GpuModel::GpuModel(device::Gpu& gpu, const model::Shape& shape, const model::TextWeights& weights,
                   const Capacity& capacity, Ranks ranks, device::GpuExchange& exchange, DrafterModel drafter,
                   GpuModelOptions options)
    : state_(std::make_unique<State>(gpu, shape, weights, capacity, GpuGroup(shape, ranks, &exchange), drafter,
                                     options)) {}

GpuModel::~GpuModel() = default;

int64_t GpuModel::weight_bytes(const model::Shape& shape, const model::TextWeights& weights, bool mtp, Ranks ranks) {
  return GpuWeights::bytes(own_shape(shape, ranks), own_weights(shape, weights, ranks), mtp);
}

int64_t GpuModel::exchange_bytes(const model::Shape& shape, const Capacity& capacity, Ranks ranks,
                                 const model::DrafterShape* drafter) {
  return GpuGroup::exchange_bytes(shape, capacity, ranks, drafter);
}

int64_t GpuModel::planned_bytes(const device::GpuProperties& gpu, const model::Shape& whole, const Capacity& capacity,
                                const model::DrafterShape* drafter, Ranks ranks) {
  const model::Shape shape = own_shape(whole, ranks);
  Arena arena(arena_alignment);
  GpuScratch scratch{};
  scratch.lay_out(arena, gpu, shape, capacity);
  const int64_t of_drafter = drafter != nullptr ? GpuDflash2::bytes(*drafter, nullptr, capacity) : 0;
  return of_drafter + arena.used() + 4 * GpuGroup::exchange_bytes(whole, capacity, ranks, drafter) +
         GpuStep::bytes(capacity, drafter != nullptr ? drafter->block_size : 0) +
         capacity.slots *
             cache::GpuSlots::bytes_of_slot(shape, count_kda_layers(shape), count_cached(shape, capacity)) +
         capacity.kept_states *
             cache::GpuKeptStates::bytes_of_record(shape, count_kda_layers(shape), count_cached(shape, capacity)) +
         cache::TokenPool::bytes(shape, count_cached(shape, capacity), capacity.pages, capacity.page_rows,
                                 capacity.cache_type);
}

void GpuModel::run(const Step& step) { state_->run(step); }

std::span<const float> GpuModel::logits() const {
  return {state_->host_logits.as<float>(), static_cast<size_t>(state_->whole_rows * state_->shape.vocab_size)};
}

std::span<const ops::Sampled> GpuModel::sampled() const {
  return {state_->host_sampled.as<ops::Sampled>(), static_cast<size_t>(state_->samples)};
}

DraftLattices GpuModel::lattices() const { return state_->drafter ? state_->drafter->lattices() : DraftLattices{}; }

std::vector<float> GpuModel::hidden() {
  State& s = *state_;
  const int64_t count = s.rows * s.shape.hidden_size;
  std::vector<uint16_t> bits(static_cast<size_t>(count));
  s.gpu.download(bits.data(), s.scratch.hidden, count * 2);
  s.gpu.synchronize();
  std::vector<float> values(static_cast<size_t>(count));
  std::transform(bits.begin(), bits.end(), values.begin(),
                 [](uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); });
  return values;
}

int64_t GpuModel::graph_steps() const { return state_->graph_steps; }
int64_t GpuModel::launched_steps() const { return state_->launched_steps; }

RunnerCounts GpuModel::counts() const {
  return {state_->gpu.allocations(), state_->gpu.kernels_loaded(), state_->graph_steps, state_->launched_steps,
          state_->result_bytes};
}

void GpuModel::load_kernels(device::Gpu& gpu, const model::Shape& shape, const model::DrafterShape* drafter) {
  const GpuOps ops(gpu, drafter != nullptr ? kernel_defines(shape, drafter->head_dim) : kernel_defines(shape), shape);
}

}  // namespace tandem::forward
