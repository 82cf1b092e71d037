// Weights as the operations want them.
#include <algorithm>

#include "forward/pass.h"
#include "ops/linear/decode.h"
#include "ops/simd/kernels.h"

namespace tandem::forward {
namespace {

ops::Mlp mlp_of(const model::MlpWeights& w) { return {w.gate_proj, w.up_proj, w.down_proj}; }

std::vector<float> transposed_taps(const model::Vector& conv, int64_t channels, int64_t kernel) {
  std::vector<float> taps(conv.size());
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t tap = 0; tap < kernel; ++tap)
      taps[static_cast<size_t>(tap * channels + c)] = conv[static_cast<size_t>(c * kernel + tap)];
  }
  return taps;
}

// kv_b_proj is read by columns, of which no coded format has any.
void decode_kv_b(PreparedLayer& layer) {
  layer.kv_b_values = ops::decode(layer.kv_b);
  model::Matrix plain;
  plain.format = ops::WeightFormat::f32;
  plain.data = reinterpret_cast<const std::byte*>(layer.kv_b_values.data());
  plain.out_features = layer.kv_b.out_features;
  plain.in_features = plain.leaf_columns = layer.kv_b.in_features;
  layer.kv_b = plain;
}

}  // namespace

PreparedLayer prepare_layer(const model::LayerWeights& weights, const model::Shape& shape, int64_t state_layer) {
  PreparedLayer layer;
  layer.weights = &weights;
  layer.state_layer = state_layer;
  if (weights.kda) {
    layer.conv_taps = transposed_taps(weights.kda->conv, 3 * shape.kda_width(), shape.short_conv_kernel_size);
    layer.rate.resize(weights.kda->a_log.size());
    ops::kernels().exp(weights.kda->a_log.data(), shape.kda_num_heads, layer.rate.data());
  } else {
    layer.kv_b = weights.dsa->kv_b_proj;
    if (layer.kv_b.format != ops::WeightFormat::bf16 && layer.kv_b.format != ops::WeightFormat::f32) decode_kv_b(layer);
  }
  if (weights.moe) {
    for (const model::MlpWeights& expert : weights.moe->experts) layer.routed.push_back(mlp_of(expert));
    layer.shared = mlp_of(weights.moe->shared);
  } else {
    layer.shared = mlp_of(*weights.mlp);
  }
  layer.has_shared = layer.shared.gate.out_features > 0;
  return layer;
}

}  // namespace tandem::forward
