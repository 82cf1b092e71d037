// Loading of text weights: the bundled checkpoints, both naming conventions, FP8 blocks, leaf borders, and what is
// refused.
#include "model/weights.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "model/testing/checkpoint_files.h"

namespace tandem::model::weights_test {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::expect_parts;
using testing::StoredTensor;

const std::string text = "model.language_model.";

class Weights : public ::testing::Test {
 protected:
  static Checkpoint tiny_a() { return Checkpoint::open(testing::source_dir() / "tests/golden/tinyA"); }
  static Shape tiny_a_shape() { return read_shape(testing::source_dir() / "tests/golden/tinyA"); }

  Checkpoint written(const std::vector<StoredTensor>& tensors) {
    const auto path = folder_.path() / "model.safetensors";
    testing::write_file(path, testing::safetensors_bytes(tensors));
    return Checkpoint::open(folder_.path());
  }

  testing::TemporaryFolder folder_;
};

StoredTensor& named(std::vector<StoredTensor>& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  if (found == tensors.end()) throw std::runtime_error(name);
  return *found;
}

std::string stored_bytes(const Matrix& matrix) {
  const int64_t size = matrix.format == ops::WeightFormat::f32 ? 4 : matrix.format == ops::WeightFormat::bf16 ? 2 : 1;
  const int64_t bytes = matrix.out_features * matrix.in_features * size;
  return {reinterpret_cast<const char*>(matrix.data), static_cast<size_t>(bytes)};
}

StoredTensor taken(std::vector<StoredTensor>& tensors, const std::string& name) {
  StoredTensor tensor = named(tensors, name);
  std::erase_if(tensors, [&](const auto& t) { return t.name == name; });
  return tensor;
}

std::string replaced(std::string name, const std::string& from, const std::string& to) {
  const size_t at = name.find(from);
  return at == std::string::npos ? name : name.replace(at, from.size(), to);
}

// The renames of spec/model.md 8.4, applied to the layers that have the tensors. `prefix` replaces the hub's.
std::vector<StoredTensor> saved_by_transformers(std::vector<StoredTensor> tensors, const Shape& shape,
                                                const std::string& prefix) {
  for (int64_t i = 0; i < shape.num_hidden_layers; ++i) {
    const std::string layer = text + "layers." + std::to_string(i) + ".";
    if (shape.layer_types[static_cast<size_t>(i)] == AttentionKind::kda) {
      StoredTensor conv{layer + "self_attn.conv1d.weight", DType::bf16, {3 * shape.kda_width(), 1, 4}, ""};
      for (const char* channel : {"q", "k", "v"}) {
        conv.bytes += taken(tensors, layer + "self_attn." + channel + "_conv1d.weight").bytes;
      }
      tensors.push_back(conv);
    }
    if (shape.mlp_layer_types[static_cast<size_t>(i)] == FeedForwardKind::dense) continue;
    const int64_t experts = shape.n_routed_experts, width = shape.moe_intermediate_size, hidden = shape.hidden_size;
    StoredTensor gate_up{layer + "mlp.experts.gate_up_proj", DType::bf16, {experts, 2 * width, hidden}, ""};
    StoredTensor down{layer + "mlp.experts.down_proj", DType::bf16, {experts, hidden, width}, ""};
    for (int64_t e = 0; e < experts; ++e) {
      const std::string expert = layer + "mlp.experts." + std::to_string(e);
      gate_up.bytes += taken(tensors, expert + ".gate_proj.weight").bytes;
      gate_up.bytes += taken(tensors, expert + ".up_proj.weight").bytes;
      down.bytes += taken(tensors, expert + ".down_proj.weight").bytes;
    }
    tensors.push_back(gate_up);
    tensors.push_back(down);
  }
  std::erase_if(tensors, [](const auto& t) { return t.name.starts_with(text + "layers.8."); });  // MTP is not saved
  for (StoredTensor& tensor : tensors) {
    for (const char* moved : {"f_a_proj.", "f_b_proj.", "dt_bias", "A_log"}) {
      tensor.name =
          replaced(tensor.name, std::string("self_attn.") + moved, std::string("self_attn.forget_gate.") + moved);
    }
    tensor.name = replaced(replaced(tensor.name, "hc_attn_", "attn_hc."), "hc_ffn_", "ffn_hc.");
    tensor.name = replaced(tensor.name, text, prefix);
  }
  return tensors;
}

// All weights in the fixed order of their meaning, as bytes.
std::string all_bytes(const TextWeights& weights) {
  std::string all = stored_bytes(weights.embed_tokens) + bytes_of(weights.norm) + stored_bytes(weights.lm_head);
  for (const LayerWeights& layer : weights.layers) {
    all += bytes_of(layer.input_layernorm) + bytes_of(layer.post_attention_layernorm);
    for (const auto* site : {&*layer.hc_attn, &*layer.hc_ffn}) {
      all += stored_bytes(site->fn) + bytes_of(site->base) + bytes_of(site->scale);
    }
    if (layer.kda) {
      const KdaWeights& kda = *layer.kda;
      for (const Matrix* matrix : {&kda.q_proj, &kda.k_proj, &kda.v_proj, &kda.f_a_proj, &kda.f_b_proj, &kda.g_a_proj,
                                   &kda.g_b_proj, &kda.b_proj, &kda.o_proj}) {
        all += stored_bytes(*matrix);
      }
      all += bytes_of(kda.conv) + bytes_of(kda.a_log) + bytes_of(kda.dt_bias) + bytes_of(kda.o_norm);
    }
    if (!layer.moe) continue;
    for (const MlpWeights& expert : layer.moe->experts) {
      all += stored_bytes(expert.gate_proj) + stored_bytes(expert.up_proj) + stored_bytes(expert.down_proj);
    }
  }
  return all;
}

std::string as_f32_bytes(const StoredTensor& tensor) {
  if (tensor.dtype == DType::f32) return tensor.bytes;
  std::string result;
  for (size_t i = 0; i < tensor.bytes.size(); i += 2) result += std::string(2, '\0') + tensor.bytes.substr(i, 2);
  return result;
}

TEST_F(Weights, BundledModelLoads) {
  const auto folder = testing::source_dir() / "models/nano";
  const Shape shape = read_shape(folder);
  const Checkpoint checkpoint = Checkpoint::open(folder);
  EXPECT_EQ(checkpoint.tensors().size(), 479u);  // models/nano/README.md
  const TextWeights weights = load_text_weights(checkpoint, shape);
  ASSERT_EQ(weights.layers.size(), 8u);
  EXPECT_TRUE(weights.layers[0].kda && weights.layers[0].mlp && !weights.layers[0].moe);
  EXPECT_TRUE(weights.layers[3].dsa && weights.layers[3].moe && !weights.layers[3].kda);
  ASSERT_TRUE(weights.mtp);
  EXPECT_TRUE(weights.mtp->layer.dsa && weights.mtp->layer.moe && !weights.mtp->layer.hc_attn);
  EXPECT_EQ(weights.mtp->layer.moe->experts.size(), 8u);
  EXPECT_EQ(weights.layers[0].kda->conv.size(), 3u * 256 * 4);
}

TEST_F(Weights, TinyBLoadsWithoutMtp) {
  const auto folder = testing::source_dir() / "tests/golden/tinyB";
  const Checkpoint checkpoint = Checkpoint::open(folder);
  EXPECT_FALSE(load_text_weights(checkpoint, read_shape(folder)).mtp);
}

TEST_F(Weights, ValuesAreThoseStored) {
  const Checkpoint checkpoint = tiny_a();
  std::vector<StoredTensor> tensors = testing::read_tensors(checkpoint);
  const TextWeights weights = load_text_weights(checkpoint, tiny_a_shape());
  const KdaWeights& kda = *weights.layers[0].kda;
  EXPECT_EQ(stored_bytes(kda.k_proj), named(tensors, text + "layers.0.self_attn.k_proj.weight").bytes);
  EXPECT_EQ(bytes_of(kda.a_log), named(tensors, text + "layers.0.self_attn.A_log").bytes);
  std::string conv;
  for (const char* channel : {"q", "k", "v"}) {
    conv += as_f32_bytes(named(tensors, text + "layers.0.self_attn." + channel + "_conv1d.weight"));
  }
  EXPECT_EQ(bytes_of(kda.conv), conv);
  EXPECT_EQ(stored_bytes(weights.mtp->layer.moe->experts[5].up_proj),
            named(tensors, text + "layers.8.mlp.experts.5.up_proj.weight").bytes);
  EXPECT_EQ(bytes_of(weights.mtp->shared_head_norm),
            as_f32_bytes(named(tensors, text + "layers.8.shared_head.norm.weight")));
}

TEST_F(Weights, LeavesAreHeadsAndBlocks) {
  const Checkpoint checkpoint = tiny_a();
  const TextWeights weights = load_text_weights(checkpoint, tiny_a_shape());
  const LayerWeights& first = weights.layers[0];
  EXPECT_EQ(first.kda->o_proj.leaf_columns, 2 * 32);              // 3 heads of 32: 2 + 1
  EXPECT_EQ(weights.layers[3].dsa->o_proj.leaf_columns, 2 * 24);  // 3 heads of 24: 2 + 1
  EXPECT_EQ(first.mlp->down_proj.in_features, 160);               // 2 blocks: 128 + 32
  EXPECT_EQ(first.mlp->down_proj.leaf_columns, 128);
  const MoeWeights& moe = *weights.layers[1].moe;
  EXPECT_EQ(moe.shared.down_proj.in_features, 80);  // one block: a single leaf
  EXPECT_EQ(moe.shared.down_proj.leaf_columns, 80);
  EXPECT_EQ(moe.experts[0].down_proj.leaf_columns, 40);
  EXPECT_EQ(first.kda->q_proj.leaf_columns, 96);
  EXPECT_EQ(first.hc_attn->fn.leaf_columns, 4 * 96);
  EXPECT_EQ(weights.mtp->eh_proj.leaf_columns, 2 * 96);
}

TEST_F(Weights, LeafOfThreeBlocksTakesTwo) {
  const auto folder = testing::source_dir() / "models/nano";
  Shape shape = read_shape(folder);
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const TextWeights weights = load_text_weights(checkpoint, shape);
  EXPECT_EQ(weights.layers[0].mlp->down_proj.leaf_columns, 256);  // width 512: 2 + 2 blocks
  EXPECT_EQ(weights.layers[1].moe->shared.down_proj.leaf_columns, 128);
  EXPECT_EQ(weights.layers[1].moe->experts[0].down_proj.leaf_columns, 128);
}

TEST_F(Weights, TransformersNamesGiveTheSameWeights) {
  const Checkpoint hub = tiny_a();
  const Shape shape = tiny_a_shape();
  TextWeights expected = load_text_weights(hub, shape);
  const std::string bytes = all_bytes(expected);
  for (const std::string prefix : {"model.language_model.", "model.", "language_model.model."}) {
    std::vector<StoredTensor> tensors = saved_by_transformers(testing::read_tensors(hub), shape, prefix);
    if (prefix == "language_model.model.") named(tensors, "lm_head.weight").name = "language_model.lm_head.weight";
    const Checkpoint saved = written(tensors);
    const TextWeights weights = load_text_weights(saved, shape);
    EXPECT_FALSE(weights.mtp) << "transformers does not store the MTP layer";
    EXPECT_TRUE(all_bytes(weights) == bytes) << prefix;
  }
}

TEST_F(Weights, StackedTensorOfWrongSizeIsRefused) {
  const Shape shape = tiny_a_shape();
  const auto saved = saved_by_transformers(testing::read_tensors(tiny_a()), shape, text);
  Shape more = shape;
  more.n_routed_experts = 7;
  const Checkpoint checkpoint = written(saved);
  expect_parts(error_of([&] { load_text_weights(checkpoint, more); }), {"mlp.gate.weight", "[6, 96]", "[7, 96]"});
  std::vector<StoredTensor> narrow = saved;
  StoredTensor& conv = named(narrow, text + "layers.0.self_attn.conv1d.weight");
  conv.shape[0] = 96;
  conv.bytes.resize(conv.bytes.size() / 3);
  const Checkpoint cut = written(narrow);
  expect_parts(error_of([&] { load_text_weights(cut, shape); }),
               {"layers.0.self_attn.conv1d.weight", "[96, 1, 4]", "[288, 1, 4]"});
}

// Turns a stored BF16 matrix into FP8 codes with scales; what the codes are does not matter here.
void quantise(std::vector<StoredTensor>& tensors, const std::string& name) {
  StoredTensor& weight = named(tensors, name);
  weight.dtype = DType::f8_e4m3;
  weight.bytes.resize(weight.bytes.size() / 2);
  std::vector<int64_t> shape = weight.shape;
  size_t scales = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i + 2 >= shape.size()) shape[i] = (shape[i] + 127) / 128;
    scales *= static_cast<size_t>(shape[i]);
  }
  std::vector<float> values(scales);
  for (size_t i = 0; i < scales; ++i) values[i] = 0.5f + static_cast<float>(i);
  tensors.push_back({name + "_scale_inv", DType::f32, shape, bytes_of(values)});
}

float scale_at(const Matrix& matrix, int64_t index) {
  float value = 0;
  std::memcpy(&value, matrix.block_scales + index * 4, 4);
  return value;
}

TEST_F(Weights, Fp8BlocksCarryTheirScales) {
  const Shape shape = tiny_a_shape();
  std::vector<StoredTensor> tensors = testing::read_tensors(tiny_a());
  const std::string name = text + "layers.0.mlp.down_proj.weight";  // [96, 160]: 1 x 2 blocks
  quantise(tensors, name);
  const Checkpoint checkpoint = written(tensors);
  const TextWeights weights = load_text_weights(checkpoint, shape);
  const Matrix& down = weights.layers[0].mlp->down_proj;
  EXPECT_EQ(down.format, ops::WeightFormat::fp8_block);
  EXPECT_EQ(stored_bytes(down), named(tensors, name).bytes);
  EXPECT_EQ(scale_at(down, 1), 1.5f);
  EXPECT_EQ(down.leaf_columns, 128);
  EXPECT_EQ(weights.layers[0].mlp->up_proj.format, ops::WeightFormat::bf16) << "every tensor says its own type";
}

TEST_F(Weights, Fp8ScalesMayLieInAnotherShard) {
  std::vector<StoredTensor> tensors = testing::read_tensors(tiny_a());
  const std::string name = text + "layers.0.mlp.down_proj.weight";
  quantise(tensors, name);
  const StoredTensor scales = taken(tensors, name + "_scale_inv");
  testing::write_file(folder_.path() / "a.safetensors", testing::safetensors_bytes({scales}));
  testing::write_file(folder_.path() / "b.safetensors", testing::safetensors_bytes(tensors));
  const Checkpoint checkpoint = Checkpoint::open(folder_.path());
  const TextWeights weights = load_text_weights(checkpoint, tiny_a_shape());
  EXPECT_EQ(scale_at(weights.layers[0].mlp->down_proj, 0), 0.5f);
}

TEST_F(Weights, Fp8ExpertsInAStackKeepTheirBlockRows) {
  const Shape shape = tiny_a_shape();
  auto tensors = saved_by_transformers(testing::read_tensors(tiny_a()), shape, text);
  quantise(tensors, text + "layers.1.mlp.experts.gate_up_proj");  // [6, 80, 96]: one block an expert
  const Checkpoint checkpoint = written(tensors);
  const TextWeights weights = load_text_weights(checkpoint, shape);
  const MlpWeights& expert = weights.layers[1].moe->experts[4];
  EXPECT_EQ(scale_at(expert.gate_proj, 0), 4.5f);
  EXPECT_EQ(scale_at(expert.up_proj, 0), 4.5f);
  EXPECT_EQ(expert.gate_proj.block_row, 0);
  EXPECT_EQ(expert.up_proj.block_row, 40);
  EXPECT_EQ(expert.up_proj.data - expert.gate_proj.data, 40 * 96);
}

TEST_F(Weights, Fp8WithoutRightScalesIsRefused) {
  const Shape shape = tiny_a_shape();
  std::vector<StoredTensor> good = testing::read_tensors(tiny_a());
  const std::string name = text + "layers.0.mlp.down_proj.weight", scale = name + "_scale_inv";
  quantise(good, name);
  const auto message = [&](const std::function<void(std::vector<StoredTensor>&)>& damage) {
    auto tensors = good;
    damage(tensors);
    const Checkpoint checkpoint = written(tensors);
    return error_of([&] { load_text_weights(checkpoint, shape); });
  };
  expect_parts(message([&](auto& t) { taken(t, scale); }), {scale, "missing"});
  expect_parts(message([&](auto& t) { named(t, scale).shape = {2, 1}; }), {scale, "[2, 1]", "[1, 2]"});
  expect_parts(message([&](auto& t) { named(t, scale).dtype = DType::i32; }), {scale, "I32", "F32"});
}

TEST_F(Weights, MissingWrongShapeAndWrongDtypeAreNamed) {
  const Shape shape = tiny_a_shape();
  const std::vector<StoredTensor> good = testing::read_tensors(tiny_a());
  const auto message = [&](const std::function<void(std::vector<StoredTensor>&)>& damage) {
    auto tensors = good;
    damage(tensors);
    const Checkpoint checkpoint = written(tensors);
    return error_of([&] { load_text_weights(checkpoint, shape); });
  };
  const std::string layer = text + "layers.0.";
  expect_parts(message([&](auto& t) { taken(t, layer + "self_attn.q_proj.weight"); }),
               {layer + "self_attn.q_proj.weight", "missing", "[96, 96]"});
  expect_parts(message([&](auto& t) { taken(t, text + "embed_tokens.weight"); }),
               {text + "embed_tokens.weight", "missing"});
  expect_parts(message([&](auto& t) { taken(t, text + "layers.8.enorm.weight"); }),
               {"layers.8.enorm.weight", "missing"});
  expect_parts(message([&](auto& t) {
                 named(t, layer + "mlp.up_proj.weight").shape = {96, 160};
               }),
               {"model.safetensors", layer + "mlp.up_proj.weight", "shape [96, 160]", "[160, 96]"});
  expect_parts(message([&](auto& t) {
                 named(t, layer + "self_attn.A_log").shape = {1, 3};
               }),
               {"A_log", "[1, 3]", "[3]"});
  expect_parts(message([&](auto& t) { named(t, layer + "self_attn.A_log").dtype = DType::i32; }),
               {layer + "self_attn.A_log", "I32", "F32"});
  expect_parts(message([&](auto& t) { named(t, layer + "mlp.up_proj.weight").dtype = DType::f16; }),
               {layer + "mlp.up_proj.weight", "F16", "BF16"});
}

TEST_F(Weights, SmallTensorsMayBeF16AndMatricesF32) {
  const Shape shape = tiny_a_shape();
  std::vector<StoredTensor> tensors = testing::read_tensors(tiny_a());
  StoredTensor& norm = named(tensors, text + "norm.weight");
  norm.dtype = DType::f16;  // 1.5, -2, the smallest normal and the smallest subnormal number, infinity
  const std::vector<uint16_t> halves = {0x3e00, 0xc000, 0x0400, 0x0001, 0x7c00};
  std::memcpy(norm.bytes.data(), halves.data(), 2 * halves.size());
  StoredTensor& router = named(tensors, text + "layers.1.mlp.gate.weight");
  router.bytes = as_f32_bytes(router);
  router.dtype = DType::f32;
  const Checkpoint checkpoint = written(tensors);
  const TextWeights weights = load_text_weights(checkpoint, shape);
  EXPECT_EQ(weights.norm[0], 1.5f);
  EXPECT_EQ(weights.norm[1], -2.0f);
  EXPECT_EQ(weights.norm[2], 0x1p-14f);
  EXPECT_EQ(weights.norm[3], 0x1p-24f);
  EXPECT_EQ(weights.norm[4], std::numeric_limits<float>::infinity());
  EXPECT_EQ(weights.layers[1].moe->gate.format, ops::WeightFormat::f32);
}

}  // namespace
}  // namespace tandem::model::weights_test
