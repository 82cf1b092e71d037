// The order in which weights lie in device memory: one walk that counts and one that copies.
#include "forward/gpu_weights.h"

#include <fmt/format.h>

#include "forward/gpu_uploader.h"
#include "forward/pass.h"
#include "ops/attend/mla_absorb_cuda.h"

namespace tandem::forward {
namespace {

ops::CudaMhcSite site_of(GpuUploader& up, const model::MhcWeights& w, const float* norm, const std::string& name) {
  return {up.matrix(w.fn, name).data, up.floats(w.base), up.floats(w.scale), norm};
}

GpuKda kda_of(GpuUploader& up, const PreparedLayer& layer, const std::string& name) {
  const model::KdaWeights& w = *layer.weights->kda;
  const auto matrix = [&](const ops::Matrix& m, const char* of) { return up.matrix(m, name + of); };
  GpuKda kda{};
  kda.q_proj = matrix(w.q_proj, "q_proj");
  kda.k_proj = matrix(w.k_proj, "k_proj");
  kda.v_proj = matrix(w.v_proj, "v_proj");
  kda.f_a_proj = matrix(w.f_a_proj, "f_a_proj");
  kda.g_a_proj = matrix(w.g_a_proj, "g_a_proj");
  kda.f_b_proj = matrix(w.f_b_proj, "f_b_proj");
  kda.g_b_proj = matrix(w.g_b_proj, "g_b_proj");
  kda.b_proj = matrix(w.b_proj, "b_proj");
  kda.o_proj = matrix(w.o_proj, "o_proj");
  kda.taps = up.floats(layer.conv_taps);
  kda.rate = up.floats(layer.rate);
  kda.dt_bias = up.floats(w.dt_bias);
  kda.o_norm = up.floats(w.o_norm);
  return kda;
}

GpuDsa dsa_of(GpuUploader& up, const PreparedLayer& layer, const model::Shape& shape, const std::string& name) {
  const model::DsaWeights& w = *layer.weights->dsa;
  const auto matrix = [&](const ops::Matrix& m, const char* of) { return up.matrix(m, name + of); };
  GpuDsa dsa{};
  dsa.q_a_proj = matrix(w.q_a_proj, "q_a_proj");
  dsa.q_b_proj = matrix(w.q_b_proj, "q_b_proj");
  dsa.kv_a_proj = matrix(w.kv_a_proj, "kv_a_proj");
  dsa.o_proj = matrix(w.o_proj, "o_proj");
  const ops::CudaMlaAbsorb absorb{static_cast<int32_t>(shape.num_attention_heads),
                                  static_cast<int32_t>(shape.qk_nope_head_dim), static_cast<int32_t>(shape.v_head_dim),
                                  static_cast<int32_t>(shape.kv_lora_rank)};
  const std::vector<device::bf16> kv_b = bf16_values(layer.kv_b, name + "kv_b_proj");
  dsa.kv_b = up.values(kv_b);
  dsa.kv_b_keys = up.values(absorb.transposed_keys(kv_b.data()));
  dsa.q_a_layernorm = up.floats(w.q_a_layernorm);
  dsa.kv_a_layernorm = up.floats(w.kv_a_layernorm);
  dsa.index_wq_b = matrix(w.indexer.wq_b, "indexer.wq_b");
  dsa.index_wk = matrix(w.indexer.wk, "indexer.wk");
  dsa.index_weights_proj = matrix(w.indexer.weights_proj, "indexer.weights_proj");
  dsa.index_gate = matrix(w.indexer.compress_gate, "indexer.compress_gate");
  dsa.index_ape = up.floats(w.indexer.compress_ape);
  dsa.index_norm = up.floats(w.indexer.k_norm_weight);
  dsa.index_norm_bias = up.floats(w.indexer.k_norm_bias);
  return dsa;
}

ops::ExpertPointers mlp_of(GpuUploader& up, const ops::Mlp& mlp, const std::string& name) {
  return {up.matrix(mlp.gate, name + "gate_proj").data, up.matrix(mlp.up, name + "up_proj").data,
          up.matrix(mlp.down, name + "down_proj").data};
}

GpuFeedForward feed_forward_of(GpuUploader& up, const PreparedLayer& layer, const std::string& name) {
  GpuFeedForward out{};
  out.moe = layer.weights->moe.has_value();
  if (out.moe) {
    out.router = up.matrix(layer.weights->moe->gate, name + "gate");
    out.bias = up.floats(layer.weights->moe->e_score_correction_bias);
    std::vector<ops::ExpertPointers> routed;
    for (size_t i = 0; i < layer.routed.size(); ++i)
      routed.push_back(mlp_of(up, layer.routed[i], fmt::format("{}experts.{}.", name, i)));
    out.routed = up.structs(routed);
  }
  if (layer.has_shared) {
    out.shared = mlp_of(up, layer.shared, name + (out.moe ? "shared_experts." : ""));
    out.shared_width = layer.shared.gate.out_features;
    out.shared_leaf = layer.shared.down.leaf_columns;
  }
  return out;
}

GpuLayer layer_of(GpuUploader& up, const model::LayerWeights& w, const model::Shape& shape, int64_t number,
                  int64_t state_layer) {
  const PreparedLayer prepared = prepare_layer(w, shape, state_layer);
  const std::string name = fmt::format("layers.{}.", number);
  GpuLayer layer{};
  layer.state_layer = state_layer;
  layer.input_layernorm = up.floats(w.input_layernorm);
  layer.post_attention_layernorm = up.floats(w.post_attention_layernorm);
  if (w.hc_attn) layer.attn_site = site_of(up, *w.hc_attn, layer.input_layernorm, name + "hc_attn_fn");
  if (w.hc_ffn) layer.ffn_site = site_of(up, *w.hc_ffn, layer.post_attention_layernorm, name + "hc_ffn_fn");
  if (w.kda) {
    layer.kda = kda_of(up, prepared, name + "self_attn.");
  } else {
    layer.dsa = dsa_of(up, prepared, shape, name + "self_attn.");
  }
  layer.feed_forward = feed_forward_of(up, prepared, name + "mlp.");
  return layer;
}

// Everything, in one order: to count and to copy.
void lay_out(GpuUploader& up, const model::Shape& shape, const model::TextWeights& w, bool with_mtp, GpuWeights* to) {
  const ops::CudaMatrix embed = up.matrix(w.embed_tokens, "embed_tokens"), head = up.matrix(w.lm_head, "lm_head");
  const float* norm = up.floats(w.norm);
  std::vector<GpuLayer> layers;
  int64_t kda = 0, cached = 0;
  for (const model::LayerWeights& layer : w.layers)
    layers.push_back(layer_of(up, layer, shape, static_cast<int64_t>(layers.size()), layer.kda ? kda++ : cached++));
  std::optional<GpuMtp> mtp;
  if (with_mtp && w.mtp) {
    mtp.emplace();
    mtp->enorm = up.floats(w.mtp->enorm);
    mtp->hnorm = up.floats(w.mtp->hnorm);
    mtp->shared_head_norm = up.floats(w.mtp->shared_head_norm);
    mtp->eh_proj = up.matrix(w.mtp->eh_proj, "eh_proj");
    mtp->layer = layer_of(up, w.mtp->layer, shape, std::ssize(layers), cached);
  }
  if (to == nullptr) return;
  to->embed_tokens = embed;
  to->lm_head = head;
  to->norm = norm;
  to->layers = std::move(layers);
  to->mtp = mtp;
}

}  // namespace

int64_t GpuWeights::bytes(const model::Shape& shape, const model::TextWeights& weights, bool mtp) {
  GpuUploader counter;
  lay_out(counter, shape, weights, mtp, nullptr);
  return counter.used();
}

GpuWeights::GpuWeights(device::Gpu& gpu, const model::Shape& shape, const model::TextWeights& weights, bool mtp_layer)
    : memory_(gpu.allocate(bytes(shape, weights, mtp_layer), "weights")) {
  GpuUploader up(gpu, memory_.data());
  lay_out(up, shape, weights, mtp_layer, this);
}

}  // namespace tandem::forward
