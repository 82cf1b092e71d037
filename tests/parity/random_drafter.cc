// Shape and weights of a random drafter. Windows are short, so that their rings wrap within a mix.
#include "random_drafter.h"

#include <algorithm>
#include <cmath>

#include "mix_drafting.h"

namespace tandem::parity {
namespace {

model::DrafterShape draw_shape(Random& random, const model::Shape& target) {
  model::DrafterShape shape;
  shape.vocab_size = target.vocab_size;
  shape.hidden_size = target.hidden_size;
  shape.num_target_layers = target.num_hidden_layers;
  shape.intermediate_size = random.between(8, 48);
  shape.num_hidden_layers = random.between(1, 2);
  shape.num_key_value_heads = random.between(1, 2);
  shape.num_attention_heads = shape.num_key_value_heads * random.between(1, 2);
  shape.head_dim = 2 * random.between(2, 8);
  shape.sliding_window = random.between(2, 48);
  shape.block_size = random.chance(60) ? 8 : random.between(2, 16);
  shape.conv_group_size = random.chance(50) ? 16 : 8;
  shape.selector_rank = random.between(2, 16);
  shape.selector_top_k = random.between(1, model::DrafterShape::most_candidates);
  shape.mask_token_id = static_cast<int32_t>(random.below(target.vocab_size));
  shape.target_layer_ids.clear();
  for (int64_t layer = 0; layer < target.num_hidden_layers; ++layer) {
    if (random.chance(40)) shape.target_layer_ids.push_back(layer);
  }
  if (shape.target_layer_ids.empty()) shape.target_layer_ids.push_back(random.below(target.num_hidden_layers));
  return shape;
}

// Draws weights and owns those of matrices.
class Draw {
 public:
  Draw(Random& random, std::deque<std::vector<float>>& values) : random_(random), values_(values) {}

  std::vector<float> vector(int64_t size, float middle, float spread) {
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) value = middle + spread * static_cast<float>(2 * random_.share() - 1);
    return values;
  }
  std::vector<float> norm(int64_t size) { return vector(size, 1, 0.2f); }
  ops::Matrix matrix(int64_t out, int64_t in) {
    values_.push_back(vector(out * in, 0, 2 / std::sqrt(static_cast<float>(in))));
    ops::Matrix matrix;
    matrix.format = ops::WeightFormat::f32;
    matrix.data = std::as_bytes(std::span(values_.back())).data();
    matrix.out_features = out;
    matrix.in_features = in;
    matrix.leaf_columns = in;
    return matrix;
  }
  model::DrafterConvolution convolution(const model::DrafterShape& s) {
    constexpr int64_t kernels = 2 * model::DrafterShape::conv_taps;
    return {vector(kernels * s.hidden_size, 0.5f, 0.5f), matrix(kernels * s.groups(), s.hidden_size)};
  }
  model::DrafterLayer layer(const model::DrafterShape& s) {
    model::DrafterLayer layer;
    layer.input_layernorm = norm(s.hidden_size);
    layer.post_attention_layernorm = norm(s.hidden_size);
    layer.q_norm = norm(s.head_dim);
    layer.k_norm = norm(s.head_dim);
    layer.q_proj = matrix(s.query_width(), s.hidden_size);
    layer.k_proj = matrix(s.key_width(), s.hidden_size);
    layer.v_proj = matrix(s.key_width(), s.hidden_size);
    layer.o_proj = matrix(s.hidden_size, s.query_width());
    layer.gate_proj = matrix(s.intermediate_size, s.hidden_size);
    layer.up_proj = matrix(s.intermediate_size, s.hidden_size);
    layer.down_proj = matrix(s.hidden_size, s.intermediate_size);
    layer.attention_conv = convolution(s);
    layer.mlp_conv = convolution(s);
    return layer;
  }

 private:
  Random& random_;
  std::deque<std::vector<float>>& values_;
};

}  // namespace

RandomDrafter::RandomDrafter(uint64_t seed, const model::Shape& target) {
  Random random(seed);
  shape_ = draw_shape(random, target);
  Draw draw(random, values_);
  for (int64_t i = 0; i < shape_.num_hidden_layers; ++i) weights_.layers.push_back(draw.layer(shape_));
  weights_.fc = draw.matrix(shape_.hidden_size, shape_.taps() * shape_.hidden_size);
  weights_.hidden_norm = draw.norm(shape_.hidden_size);
  weights_.norm = draw.norm(shape_.hidden_size);
  weights_.hidden_projection = draw.matrix(shape_.selector_rank, shape_.hidden_size);
  weights_.predecessor_codebook = draw.matrix(shape_.vocab_size, shape_.selector_rank);
  weights_.successor_codebook = draw.matrix(shape_.vocab_size, shape_.selector_rank);
}

}  // namespace tandem::parity
