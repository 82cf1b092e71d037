// The weights, caches and steps of a rank that has no checkpoint; forward/gpu_model.cc queues the same for one that
// has.
#include "synthetic_rank.h"

#include <algorithm>
#include <array>

#include "device/rates_args.h"
#include "forward/step_book.h"

namespace tandem::bench {
namespace {

using device::bf16;
using ops::CudaMatrix;

constexpr uint32_t bf16_bits = 0x80ff80ffu;   // sign, mantissa and the exponent's last bit of two values
constexpr uint32_t small_bf16 = 0x3c003c00u;  // of sizes from 2^-7 to 2^-5
constexpr uint32_t unit_bf16 = 0x3f003f00u;   // from 2^-1 to 2
constexpr uint32_t code_bits = 0xb7b7b7b7u;   // no byte is an FP8 NaN, no four are an fp32 one

int64_t count_kda(const model::Shape& shape) {
  return std::count(shape.layer_types.begin(), shape.layer_types.end(), model::AttentionKind::kda);
}

model::Shape with_layers(model::Shape s, int64_t layers, int64_t dense) {
  s.num_hidden_layers = layers;
  for (int64_t i = 0; i < layers; ++i) {
    s.layer_types.push_back(i % 4 == 3 ? model::AttentionKind::dsa : model::AttentionKind::kda);
    s.mlp_layer_types.push_back(i < dense ? model::FeedForwardKind::dense : model::FeedForwardKind::moe);
  }
  return s;
}

}  // namespace

model::Shape glm_shape(int64_t ranks) {
  model::Shape s;
  s.vocab_size = 154880 / ranks;
  s.hidden_size = 4096;
  s.max_position_embeddings = 1048576;
  s.intermediate_size = 12288 / ranks;
  s.moe_intermediate_size = 2048;
  s.n_routed_experts = 288;
  s.num_experts_per_tok = 8;
  s.n_shared_experts = 1;
  s.routed_scaling_factor = 2.5f;
  s.swiglu_limit = 10.0f;
  s.num_attention_heads = 64 / ranks;
  s.q_lora_rank = 1536;
  s.kv_lora_rank = 512;
  s.qk_nope_head_dim = s.v_head_dim = 256;
  s.index_n_heads = 32;
  s.index_head_dim = 128;
  s.index_topk = 2048;
  s.index_kpool = 4;
  s.hc_mult = 4;
  s.hc_sinkhorn_iters = 20;
  s.kda_num_heads = 64 / ranks;
  s.kda_head_dim = 128;
  s.short_conv_kernel_size = 4;
  return with_layers(s, 45, 3);
}

model::Shape tiny_shape() {
  model::Shape s = glm_shape(1);
  s.layer_types.clear();
  s.mlp_layer_types.clear();
  s.vocab_size = 64;
  s.hidden_size = 64;
  s.intermediate_size = s.moe_intermediate_size = 32;
  s.n_routed_experts = 4;
  s.num_experts_per_tok = 2;
  s.num_attention_heads = s.kda_num_heads = 2;
  s.q_lora_rank = 32;
  s.kv_lora_rank = 72;
  s.qk_nope_head_dim = s.v_head_dim = 32;
  s.index_n_heads = 2;
  s.index_head_dim = 32;
  s.index_topk = 16;
  s.kda_head_dim = 32;
  return with_layers(s, 4, 1);
}

// Pieces of the weights' memory; counts first.
struct SyntheticRank::Arena {
  forward::Arena pieces{256};
  CudaMatrix matrix(int64_t out, int64_t in, int64_t of_leaves = 1) {
    return {pieces.take<bf16>(out * in), static_cast<int32_t>(out), static_cast<int32_t>(in), static_cast<int32_t>(in),
            static_cast<int32_t>(in / of_leaves)};
  }
  const float* floats(int64_t count) { return pieces.take<float>(count); }
};

forward::GpuLayer SyntheticRank::make_layer(Arena& a, int64_t number, int64_t state_layer) const {
  const model::Shape& s = shape;
  const int64_t hidden = s.hidden_size, width = s.kda_width(), dim = s.kda_head_dim, heads = s.num_attention_heads;
  const auto* ones = ones_.as<float>();
  forward::GpuLayer layer{};
  layer.state_layer = state_layer;
  layer.input_layernorm = layer.post_attention_layernorm = ones;
  for (ops::CudaMhcSite* site : {&layer.attn_site, &layer.ffn_site})
    *site = {a.matrix(s.mhc_rows(), s.hc_mult * hidden).data, a.floats(s.mhc_rows()), a.floats(3), ones};
  if (s.layer_types[static_cast<size_t>(number)] == model::AttentionKind::kda) {
    forward::GpuKda& w = layer.kda.emplace();
    w.q_proj = a.matrix(width, hidden);
    w.k_proj = a.matrix(width, hidden);
    w.v_proj = a.matrix(width, hidden);
    w.f_a_proj = a.matrix(dim, hidden);
    w.g_a_proj = a.matrix(dim, hidden);
    w.f_b_proj = a.matrix(width, dim);
    w.g_b_proj = a.matrix(width, dim);
    w.b_proj = a.matrix(s.kda_num_heads, hidden);
    w.o_proj = a.matrix(hidden, width, leaves);
    w.taps = a.floats(s.short_conv_kernel_size * 3 * width);
    w.rate = a.floats(s.kda_num_heads);
    w.dt_bias = a.floats(width);
    w.o_norm = ones;
  } else {
    forward::GpuDsa& w = layer.dsa.emplace();
    w.q_a_proj = a.matrix(s.q_lora_rank, hidden);
    w.q_b_proj = a.matrix(heads * s.qk_nope_head_dim, s.q_lora_rank);
    w.kv_a_proj = a.matrix(s.kv_lora_rank, hidden);
    w.o_proj = a.matrix(hidden, heads * s.v_head_dim, leaves);
    w.kv_b = a.matrix(heads * (s.qk_nope_head_dim + s.v_head_dim), s.kv_lora_rank).data;
    w.kv_b_keys = a.matrix(heads * s.kv_lora_rank, s.qk_nope_head_dim).data;
    w.q_a_layernorm = w.kv_a_layernorm = w.index_norm = w.index_norm_bias = ones;
    w.index_wq_b = a.matrix(s.index_n_heads * s.index_head_dim, s.q_lora_rank);
    w.index_wk = a.matrix(s.index_head_dim, hidden);
    w.index_weights_proj = a.matrix(s.index_n_heads, hidden);
    w.index_gate = a.matrix(s.index_head_dim, hidden);
    w.index_ape = a.floats(s.index_kpool * s.index_head_dim);
  }
  forward::GpuFeedForward& f = layer.feed_forward;
  f.moe = s.mlp_layer_types[static_cast<size_t>(number)] == model::FeedForwardKind::moe;
  f.shared_width = f.moe ? shared_width : s.intermediate_size;
  f.shared_leaf = f.shared_width / leaves;
  f.shared = {a.matrix(f.shared_width, hidden).data, a.matrix(f.shared_width, hidden).data,
              a.matrix(hidden, f.shared_width).data};
  if (!f.moe) return layer;
  f.router = a.matrix(s.n_routed_experts, hidden);
  f.bias = a.floats(s.n_routed_experts);
  f.routed = tables_.as<ops::ExpertPointers>() + number * held;
  return layer;
}

void SyntheticRank::lay_out(Arena& a) {
  const int64_t hidden = shape.hidden_size, width = shape.moe_intermediate_size;
  layers_.clear();
  experts_.clear();
  int64_t kda = 0, cached = 0;
  for (int64_t i = 0; i < shape.num_hidden_layers; ++i) {
    const bool is_kda = shape.layer_types[static_cast<size_t>(i)] == model::AttentionKind::kda;
    layers_.push_back(make_layer(a, i, is_kda ? kda++ : cached++));
  }
  for (int64_t i = 0; i < held; ++i)
    experts_.push_back({a.matrix(width, hidden).data, a.matrix(width, hidden).data, a.matrix(hidden, width).data});
  embed_ = a.matrix(shape.vocab_size, hidden);
  head_ = a.matrix(shape.vocab_size, hidden);
}

void SyntheticRank::fill(void* data, int64_t bytes, uint32_t keep, uint32_t add, uint32_t seed) const {
  gpu.launch({.kernel = fill_, .grid = {1024, 1, 1}, .threads = 256},
             device::FillRandomArgs{static_cast<uint32_t*>(data), bytes / 4, seed, keep, add});
}

SyntheticRank::SyntheticRank(device::Gpu& device, const model::Shape& of, int64_t held_experts, int64_t width,
                             int64_t leaf_count, const forward::Capacity& c)
    : gpu(device),
      shape(of),
      capacity(c),
      ops(gpu, forward::kernel_defines(of), of),
      held(held_experts),
      shared_width(width),
      leaves(leaf_count),
      fill_(gpu.load({"device/rates.cu", "fill_random", forward::kernel_defines(of)})),
      ones_(gpu.allocate(int64_t{4} * 16384, "weights of norms")),
      tables_(gpu.allocate(of.num_hidden_layers * held * static_cast<int64_t>(sizeof(ops::ExpertPointers)),
                           "tables of experts")),
      pool_(gpu, forward::kernel_defines(of), of, of.num_hidden_layers - count_kda(of), c.pages, c.page_rows,
            c.cache_type),
      slots_(gpu, of, count_kda(of), of.num_hidden_layers - count_kda(of), c.slots),
      step_(gpu, c) {
  const std::vector<float> ones(16384, 1.0f);
  gpu.upload(ones_.data(), ones.data(), std::ssize(ones) * 4);
  Arena count;
  lay_out(count);
  weights_ = gpu.allocate(count.pieces.used(), "random weights");
  Arena real;
  real.pieces.start_at(weights_.data());
  lay_out(real);
  fill(weights_.data(), weights_.size(), bf16_bits, small_bf16, 1);
  std::vector<ops::ExpertPointers> table;
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer)
    for (int64_t i = 0; i < held; ++i) table.push_back(experts_[static_cast<size_t>((i + 37 * layer) % held)]);
  gpu.upload(tables_.data(), table.data(), tables_.size());

  forward::Arena arena(256);
  scratch_.lay_out(arena, gpu.properties(), shape, capacity);
  activations_ = gpu.allocate(arena.used(), "activations");
  arena.start_at(activations_.data());
  scratch_.lay_out(arena, gpu.properties(), shape, capacity);
  fill(activations_.data(), activations_.size(), bf16_bits, small_bf16, 2);
  fill(scratch_.streams, capacity.max_rows * shape.hc_mult * shape.hidden_size * 2, bf16_bits, unit_bf16, 3);
  fill(slots_.data(0), capacity.slots * slots_.layout().size, bf16_bits, small_bf16, 4);
  const bool plain = capacity.cache_type == forward::CacheType::bf16;
  const uint32_t keep = plain ? bf16_bits : code_bits, add = plain ? unit_bf16 : 0;
  const int64_t planes = shape.num_hidden_layers - count_kda(shape);
  const ops::PlaneView latent = pool_.latent(0), pooled = pool_.pooled(0);
  fill(latent.data, planes * capacity.pages * latent.rows_of_page * latent.row_bytes, keep, add, 5);
  fill(pooled.data, planes * capacity.pages * pooled.rows_of_page * pooled.row_bytes, keep, add, 6);
  if (pooled.scales != nullptr)
    fill(pooled.scales, planes * capacity.pages * pooled.rows_of_page * 4, 0x007fffffu, 0x3c000000u, 7);
  gpu.synchronize();
}

void SyntheticRank::set_step(int64_t stream_count, int64_t rows_of_stream, int64_t at) {
  streams = stream_count;
  rows = stream_count * rows_of_stream;
  position = at;
  const int64_t pages = (at + rows_of_stream + capacity.page_rows - 1) / capacity.page_rows;
  forward::Step step;
  for (int64_t stream = 0; stream < streams; ++stream) {
    const auto first = static_cast<int32_t>(stream * rows_of_stream);
    step.segments.push_back({static_cast<int32_t>(stream), static_cast<int32_t>(stream * pages),
                             static_cast<int32_t>(pages), first, static_cast<int32_t>(rows_of_stream),
                             static_cast<int32_t>(rows_of_stream), at, 0});
    for (int64_t i = 0; i < rows_of_stream; ++i) {
      step.tokens.push_back(static_cast<int32_t>((first + i) * 7919 % shape.vocab_size));
      step.positions.push_back(at + i);
    }
    for (int64_t i = 0; i < pages; ++i)
      step.page_tables.push_back(static_cast<int32_t>(1 + (stream * pages + i) % (capacity.pages - 1)));
    step.logit_rows.push_back(first + static_cast<int32_t>(rows_of_stream) - 1);
  }
  const std::vector<int64_t> kda_blocks(static_cast<size_t>(capacity.slots), at / 16);
  step_.upload(step, forward::StepBook(capacity, shape.vocab_size), kda_blocks, nullptr);
  gpu.synchronize();
}

forward::GpuPass SyntheticRank::pass() const {
  return {ops, shape, scratch_, pool_, slots_, group_, step_.view(), rows, std::min<int64_t>(rows, capacity.slots)};
}

ops::CudaMhcRows SyntheticRank::mhc() const {
  return {step_.view().counts + ops::step_rows, scratch_.streams, scratch_.post, scratch_.comb, scratch_.mhc};
}

void SyntheticRank::enter(int64_t layer) const {
  ops.mhc.enter(mhc(), layers_[static_cast<size_t>(layer)].attn_site, scratch_.x, shape.hidden_size, rows);
}

void SyntheticRank::attention(int64_t layer) const {
  const forward::GpuLayer& w = layers_[static_cast<size_t>(layer)];
  if (w.kda) {
    forward::kda_attention(pass(), w);
  } else {
    forward::dsa_attention(pass(), w);
  }
}

void SyntheticRank::to_feed_forward(int64_t layer) const {
  ops.mhc.leave_and_enter(mhc(), scratch_.y, shape.hidden_size, layers_[static_cast<size_t>(layer)].ffn_site,
                          scratch_.x, shape.hidden_size, rows);
}

void SyntheticRank::to_attention(int64_t layer) const {
  if (layer + 1 == shape.num_hidden_layers) return ops.mhc.leave(mhc(), scratch_.y, shape.hidden_size, rows);
  ops.mhc.leave_and_enter(mhc(), scratch_.y, shape.hidden_size, layers_[static_cast<size_t>(layer + 1)].attn_site,
                          scratch_.x, shape.hidden_size, rows);
}

ops::ExpertShape SyntheticRank::moe_shape() const {
  return forward::expert_shape(shape, true, held, shared_width, shared_width / leaves);
}

// forward::feed_forward(), but for the experts that another rank has.
void SyntheticRank::feed_forward(int64_t layer) const {
  const forward::GpuFeedForward& w = layers_[static_cast<size_t>(layer)].feed_forward;
  const forward::GpuPass p = pass();
  if (!w.moe || held == shape.n_routed_experts) return forward::feed_forward(p, layers_[static_cast<size_t>(layer)]);
  const std::array router{
      ops::CudaLinearCall{w.router, scratch_.x, shape.hidden_size, scratch_.router, shape.n_routed_experts, true}};
  ops.linear.run(router, p.rows(), rows);
  ops::RouteArgs route{};
  route.rows = p.rows();
  route.logits = scratch_.router;
  route.bias = w.bias;
  route.chosen = scratch_.chosen;
  route.weights = scratch_.expert_weights;
  route.experts = static_cast<int32_t>(shape.n_routed_experts);
  route.per_token = static_cast<int32_t>(shape.num_experts_per_tok);
  route.normalise = 1;
  route.routed_scaling_factor = shape.routed_scaling_factor;
  ops.route.run(route, rows);
  ops::ExpertRows of;
  of.rows = p.rows();
  of.chosen = scratch_.chosen;
  of.weights = scratch_.expert_weights;
  of.routed = w.routed;
  of.shared = w.shared;
  of.x = scratch_.x;
  of.y = scratch_.y;
  of.x_stride = of.y_stride = shape.hidden_size;
  of.scratch = scratch_.experts;
  ops.experts.run(moe_shape(), of, rows);
}

void SyntheticRank::head() const {
  const int64_t hidden = shape.hidden_size, wanted = std::min<int64_t>(streams, capacity.max_logit_rows);
  ops.mhc.collapse(scratch_.streams, ones_.as<float>(), nullptr, pass().rows(), scratch_.hidden, hidden, rows);
  ops::MoveRowsArgs gather{};
  gather.count = step_.logit_count();
  gather.sources = step_.logit_sources();
  gather.rows = scratch_.hidden;
  gather.out = scratch_.logit_hidden;
  gather.out_stride = hidden;
  gather.width = static_cast<int32_t>(hidden);
  ops.rows.gather(gather, wanted);
  const std::array head{
      ops::CudaLinearCall{head_, scratch_.logit_hidden, hidden, scratch_.logits, shape.vocab_size, true}};
  ops.linear.run(head, step_.logit_count(), wanted);
}

void SyntheticRank::whole_step() const {
  ops::EmbedArgs embed{};
  embed.rows = pass().rows();
  embed.tokens = step_.view().tokens;
  embed.table = embed_.data;
  embed.token_count = static_cast<int32_t>(shape.vocab_size);
  embed.hidden = static_cast<int32_t>(shape.hidden_size);
  embed.copies = static_cast<int32_t>(shape.hc_mult);
  embed.out = scratch_.streams;
  embed.out_stride = shape.hc_mult * shape.hidden_size;
  ops.embed.embed(embed, rows);
  enter(0);
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    attention(layer);
    to_feed_forward(layer);
    feed_forward(layer);
    to_attention(layer);
  }
  head();
}

std::vector<int32_t> SyntheticRank::chosen() const {
  std::vector<int32_t> out(static_cast<size_t>(rows * shape.num_experts_per_tok));
  gpu.download(out.data(), scratch_.chosen, std::ssize(out) * 4);
  gpu.synchronize();
  return out;
}

}  // namespace tandem::bench
