// Weights as the operations want them.
#include <algorithm>

#include "forward/pass.h"
#include "ops/simd/fp8.h"
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

// kv_b_proj is read by columns, which FP8 blocks do not allow; no known pack stores it so, but the loader accepts it.
void decode_kv_b(PreparedLayer& layer) {
  const model::Matrix& w = layer.kv_b;
  layer.kv_b_values.resize(static_cast<size_t>(w.out_features * w.in_features));
  for (int64_t o = 0; o < w.out_features; ++o) {
    for (int64_t i = 0; i < w.in_features; ++i) {
      float scale;
      const int64_t block = (w.block_row + o) / 128 * ((w.stride() + 127) / 128) + (w.first_column + i) / 128;
      std::copy_n(w.block_scales + 4 * block, 4, reinterpret_cast<std::byte*>(&scale));
      layer.kv_b_values[static_cast<size_t>(o * w.in_features + i)] =
          ops::fp8_e4m3_values[static_cast<uint8_t>(w.data[o * w.stride() + i])] * scale;
    }
  }
  layer.kv_b.format = ops::WeightFormat::f32;
  layer.kv_b.data = reinterpret_cast<const std::byte*>(layer.kv_b_values.data());
  layer.kv_b.block_scales = nullptr;
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
    if (layer.kv_b.format == ops::WeightFormat::fp8_block) decode_kv_b(layer);
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
