// The tensors of the text model, read top to bottom like the table in spec/model.md 8.1.
#include "model/weight_layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace tandem::model {
namespace {

// A rule of sharing.
struct Rule {
  Split split = Split::replicated;
  int64_t unit = 1;
};
Rule rows(int64_t unit) { return {Split::rows, unit}; }
Rule columns(int64_t unit) { return {Split::columns, unit}; }

template <typename T>
T& present(std::optional<T>& part) {
  return part ? *part : part.emplace();
}

// Walks one layer; the layer's prefix, index and component stay the same over many tensors.
class LayerWalk {
 public:
  LayerWalk(const Shape& shape, int64_t layer, WeightVisitor& visitor)
      : shape_(shape), layer_(layer), prefix_(fmt::format("layers.{}.", layer)), visitor_(visitor) {}

  void norms(LayerWeights& weights) {
    component_ = Component::layer_norms;
    vector("input_layernorm.weight", {shape_.hidden_size}, weights.input_layernorm);
    vector("post_attention_layernorm.weight", {shape_.hidden_size}, weights.post_attention_layernorm);
  }

  void mhc(const std::string& site, MhcWeights& weights) {
    component_ = Component::mhc;
    const int64_t rows = shape_.mhc_rows();
    matrix(site + "_fn", rows, shape_.hc_mult * shape_.hidden_size, weights.fn);
    vector(site + "_base", {rows}, weights.base);
    vector(site + "_scale", {3}, weights.scale);
  }

  void kda(KdaWeights& weights);
  void dsa(DsaWeights& weights);
  void indexer(IndexerWeights& weights);
  void moe(MoeWeights& weights);

  // An expert is whole on one rank; other MLPs are shared by their width.
  void mlp(const std::string& name, Component component, int64_t width, MlpWeights& weights) {
    component_ = component;
    const int64_t hidden = shape_.hidden_size;
    const bool whole = component == Component::routed_experts;
    const Rule up = whole ? Rule{Split::experts} : rows(mlp_block), down = whole ? up : columns(mlp_block);
    matrix(name + ".gate_proj.weight", width, hidden, weights.gate_proj, up);
    matrix(name + ".up_proj.weight", width, hidden, weights.up_proj, up);
    matrix(name + ".down_proj.weight", hidden, width, weights.down_proj, down);
  }

  void mtp_entry(MtpWeights& weights) {
    const int64_t hidden = shape_.hidden_size;
    component_ = Component::mtp_eh_proj;
    matrix("eh_proj.weight", hidden, 2 * hidden, weights.eh_proj);
    component_ = Component::mtp_norms;
    vector("enorm.weight", {hidden}, weights.enorm);
    vector("hnorm.weight", {hidden}, weights.hnorm);
    vector("shared_head.norm.weight", {hidden}, weights.shared_head_norm);
  }

 private:
  void matrix(const std::string& name, int64_t out, int64_t in, Matrix& target, Rule rule = {}) {
    const int64_t leaf = rule.split == Split::columns ? first_half(in, rule.unit) : in;
    visitor_.matrix({prefix_ + name, {out, in}, component_, layer_, leaf, rule.split, rule.unit}, target);
  }
  void vector(const std::string& name, std::vector<int64_t> dimensions, Vector& target, Rule rule = {}) {
    visitor_.vector({prefix_ + name, std::move(dimensions), component_, layer_, 0, rule.split, rule.unit}, target);
  }

  const Shape& shape_;
  int64_t layer_;
  std::string prefix_;
  WeightVisitor& visitor_;
  Component component_ = Component::layer_norms;
};

void LayerWalk::kda(KdaWeights& weights) {
  component_ = Component::kda;
  const int64_t hidden = shape_.hidden_size, width = shape_.kda_width(), dim = shape_.kda_head_dim;
  const int64_t heads = shape_.kda_num_heads, kernel = shape_.short_conv_kernel_size;
  matrix("self_attn.q_proj.weight", width, hidden, weights.q_proj, rows(dim));
  matrix("self_attn.k_proj.weight", width, hidden, weights.k_proj, rows(dim));
  matrix("self_attn.v_proj.weight", width, hidden, weights.v_proj, rows(dim));
  for (const char* channel : {"q", "k", "v"}) {
    vector(fmt::format("self_attn.{}_conv1d.weight", channel), {width, 1, kernel}, weights.conv, rows(dim));
  }
  matrix("self_attn.f_a_proj.weight", dim, hidden, weights.f_a_proj);
  matrix("self_attn.f_b_proj.weight", width, dim, weights.f_b_proj, rows(dim));
  matrix("self_attn.g_a_proj.weight", dim, hidden, weights.g_a_proj);
  matrix("self_attn.g_b_proj.weight", width, dim, weights.g_b_proj, rows(dim));
  matrix("self_attn.b_proj.weight", heads, hidden, weights.b_proj, rows(1));
  vector("self_attn.A_log", {heads}, weights.a_log, rows(1));
  vector("self_attn.dt_bias", {width}, weights.dt_bias, rows(dim));
  vector("self_attn.o_norm.weight", {dim}, weights.o_norm);
  matrix("self_attn.o_proj.weight", hidden, width, weights.o_proj, columns(dim));
}

void LayerWalk::dsa(DsaWeights& weights) {
  component_ = Component::mla;
  const int64_t hidden = shape_.hidden_size, heads = shape_.num_attention_heads;
  const int64_t key = shape_.qk_nope_head_dim, value = shape_.v_head_dim;
  matrix("self_attn.q_a_proj.weight", shape_.q_lora_rank, hidden, weights.q_a_proj);
  vector("self_attn.q_a_layernorm.weight", {shape_.q_lora_rank}, weights.q_a_layernorm);
  matrix("self_attn.q_b_proj.weight", heads * key, shape_.q_lora_rank, weights.q_b_proj, rows(key));
  matrix("self_attn.kv_a_proj_with_mqa.weight", shape_.kv_lora_rank, hidden, weights.kv_a_proj);
  vector("self_attn.kv_a_layernorm.weight", {shape_.kv_lora_rank}, weights.kv_a_layernorm);
  matrix("self_attn.kv_b_proj.weight", heads * (key + value), shape_.kv_lora_rank, weights.kv_b_proj,
         rows(key + value));
  matrix("self_attn.o_proj.weight", hidden, heads * value, weights.o_proj, columns(value));
  indexer(weights.indexer);
}

void LayerWalk::indexer(IndexerWeights& weights) {
  component_ = Component::indexer;
  const int64_t hidden = shape_.hidden_size, dim = shape_.index_head_dim;
  matrix("self_attn.indexer.wq_b.weight", shape_.index_n_heads * dim, shape_.q_lora_rank, weights.wq_b);
  matrix("self_attn.indexer.wk.weight", dim, hidden, weights.wk);
  matrix("self_attn.indexer.weights_proj.weight", shape_.index_n_heads, hidden, weights.weights_proj);
  matrix("self_attn.indexer.index_kpool_compress_gate", dim, hidden, weights.compress_gate);
  vector("self_attn.indexer.index_kpool_compress_ape", {shape_.index_kpool, dim}, weights.compress_ape);
  vector("self_attn.indexer.k_norm.weight", {dim}, weights.k_norm_weight);
  vector("self_attn.indexer.k_norm.bias", {dim}, weights.k_norm_bias);
}

void LayerWalk::moe(MoeWeights& weights) {
  component_ = Component::router;
  matrix("mlp.gate.weight", shape_.n_routed_experts, shape_.hidden_size, weights.gate);
  vector("mlp.gate.e_score_correction_bias", {shape_.n_routed_experts}, weights.e_score_correction_bias);
  weights.experts.resize(static_cast<size_t>(shape_.n_routed_experts));
  for (size_t e = 0; e < weights.experts.size(); ++e) {
    mlp(fmt::format("mlp.experts.{}", e), Component::routed_experts, shape_.moe_intermediate_size, weights.experts[e]);
  }
  mlp("mlp.shared_experts", Component::shared_expert, shape_.shared_width(), weights.shared);
}

}  // namespace

int64_t first_half(int64_t length, int64_t unit) {
  const int64_t units = (length + unit - 1) / unit;
  return std::min(length, (units + 1) / 2 * unit);
}

void visit_main_weights(const Shape& shape, TextWeights& weights, WeightVisitor& visitor) {
  const int64_t vocab = shape.vocab_size, hidden = shape.hidden_size;
  visitor.matrix({"embed_tokens.weight", {vocab, hidden}, Component::embedding, -1, hidden, Split::rows, 1},
                 weights.embed_tokens);
  weights.layers.resize(static_cast<size_t>(shape.num_hidden_layers));
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    LayerWeights& layer = weights.layers[i];
    LayerWalk walk(shape, static_cast<int64_t>(i), visitor);
    walk.norms(layer);
    walk.mhc("hc_attn", present(layer.hc_attn));
    walk.mhc("hc_ffn", present(layer.hc_ffn));
    if (shape.layer_types[i] == AttentionKind::kda) {
      walk.kda(present(layer.kda));
    } else {
      walk.dsa(present(layer.dsa));
    }
    if (shape.mlp_layer_types[i] == FeedForwardKind::dense) {
      walk.mlp("mlp", Component::dense_mlp, shape.intermediate_size, present(layer.mlp));
    } else {
      walk.moe(present(layer.moe));
    }
  }
  visitor.vector({"norm.weight", {hidden}, Component::final_norm, -1}, weights.norm);
  visitor.matrix({"lm_head.weight", {vocab, hidden}, Component::lm_head, -1, hidden, Split::rows, 1}, weights.lm_head);
}

void visit_mtp_weights(const Shape& shape, TextWeights& weights, WeightVisitor& visitor) {
  MtpWeights& mtp = present(weights.mtp);
  LayerWalk walk(shape, shape.num_hidden_layers, visitor);
  walk.mtp_entry(mtp);
  walk.norms(mtp.layer);
  walk.dsa(present(mtp.layer.dsa));
  walk.moe(present(mtp.layer.moe));
}

}  // namespace tandem::model
