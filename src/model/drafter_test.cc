// The drafter's config.json and tensors: the published dimensions, nano's files, and everything that is refused.
#include "model/drafter.h"

#include <algorithm>

#include "model/testing/checkpoint_files.h"

namespace tandem::model::drafter_test {
namespace {

using testing::error_of;
using testing::expect_parts;

const std::filesystem::path nano_drafter = testing::source_dir() / "models/nano-dflash2";
const std::filesystem::path nano = testing::source_dir() / "models/nano";

std::string config() { return testing::read_file(nano_drafter / "config.json"); }

// nano's config with one piece of its text replaced.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = config();
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Drafter, ThePublishedOne) {
  const DrafterShape published;
  EXPECT_EQ(published.parameters(), 1'171'080'448);  // spec/speculation.md 0 and 8
  EXPECT_EQ(published.row_bytes(1), 20480);
  EXPECT_EQ(published.ring_rows(), 2047 + 16);
  EXPECT_EQ(published.groups(), 256);
  EXPECT_EQ(published.query_width(), 4096);
  EXPECT_EQ(published.key_width(), 1024);
  // The config of spec/speculation.md 1.1.
  const DrafterShape read = parse_drafter_shape(R"({"architectures": ["DFlash2DraftModel"], "model_type": "qwen3",
    "dtype": "bfloat16", "hidden_size": 4096, "intermediate_size": 12288, "hidden_act": "silu", "num_hidden_layers": 5,
    "num_target_layers": 45, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "attention_bias": false, "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": false,
    "rms_norm_eps": 1e-05, "is_causal": false, "tie_word_embeddings": false, "layer_types": ["sliding_attention",
    "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention"], "sliding_window": 2048,
    "use_sliding_window": true, "max_window_layers": 5, "max_position_embeddings": 1048576,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "vocab_size": 154880,
    "eos_token_id": [154820, 154827, 154829], "pad_token_id": 154820, "bos_token_id": null,
    "dflash_config": {"block_size": 8, "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256,
    "selector_top_k": 16, "mask_token_id": 154856, "target_layer_ids": [5, 14, 24, 33, 42]},
    "transformers_version": "5.7.0"})");
  EXPECT_EQ(read, published);
}

TEST(Drafter, NanosConfig) {
  const DrafterShape shape = read_drafter_shape(nano_drafter);
  EXPECT_EQ(shape.parameters(), 4'170'496);
  EXPECT_EQ(shape.num_hidden_layers, 3);
  EXPECT_EQ(shape.sliding_window, 512);
  EXPECT_EQ(shape.mask_token_id, 2024);
  EXPECT_EQ(shape.target_layer_ids, (std::vector<int64_t>{1, 3, 6}));
  EXPECT_EQ(shape.rms_norm_eps, 1e-5f);
  EXPECT_EQ(shape.rope_theta, 10000.0);
  check_drafter_fits(shape, read_shape(nano));
}

TEST(Drafter, OtherSizesAreRead) {
  const DrafterShape a = parse_drafter_shape(changed("\"block_size\": 8", "\"block_size\": 16"));
  EXPECT_EQ(a.block_size, 16);
  EXPECT_EQ(a.draft_rows(), 15);
  EXPECT_EQ(parse_drafter_shape(changed("\"selector_top_k\": 16", "\"selector_top_k\": 4")).selector_top_k, 4);
  EXPECT_EQ(parse_drafter_shape(changed("10000.0", "1000000")).rope_theta, 1e6);
  EXPECT_EQ(parse_drafter_shape(changed("1e-05", "1e-06")).rms_norm_eps, 1e-6f);
  EXPECT_EQ(parse_drafter_shape(changed("\"conv_group_size\": 16", "\"conv_group_size\": 64")).groups(), 4);
}

TEST(Drafter, WhatIsNotSupportedIsRefusedByName) {
  struct Bad {
    std::string from, to, key;
  };
  for (const Bad& bad : std::vector<Bad>{
           {"DFlash2DraftModel", "DSparkDraftModel", "architectures"},
           {"\"qwen3\"", "\"llama\"", "model_type"},
           {"\"silu\"", "\"gelu\"", "hidden_act"},
           {"\"attention_bias\": false", "\"attention_bias\": true", "attention_bias"},
           {"\"is_causal\": false", "\"is_causal\": true", "is_causal"},
           {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "tie_word_embeddings"},
           {"\"use_sliding_window\": true", "\"use_sliding_window\": false", "use_sliding_window"},
           {"\"use_cache\": false", "\"draft_vocab_size\": 1000", "draft_vocab_size"},
           {"\"use_cache\": false", "\"rope_scaling\": {\"factor\": 2}", "rope_scaling"},
           {"\"sliding_attention\",\n", "\"full_attention\",\n", "layer_types[0]"},
           {"\"sliding_attention\",\n", "", "layer_types"},
           {"\"sliding_window\": 512", "\"sliding_window\": 1", "sliding_window"},
           {"\"sliding_window\": 512", "\"sliding_window\": null", "sliding_window"},
           {"\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", "rope_parameters.rope_type"},
           {"\"rope_theta\": 10000.0", "\"rope_theta\": 0", "rope_parameters.rope_theta"},
           {"\"rope_parameters\"", "\"rope_theta\"", "rope_parameters"},
           {"\"head_dim\": 128", "\"head_dim\": 127", "head_dim"},
           {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3", "num_key_value_heads"},
           {"\"hidden_size\": 256", "\"hidden_size\": 0", "hidden_size"},
           {"\"hidden_size\": 256", "\"hidden_size\": 1e3", "hidden_size"},
           {"\"intermediate_size\": 768", "\"intermediate_size\": -1", "intermediate_size"},
           {"\"num_hidden_layers\": 3", "\"num_hidden_layers\": 0", "num_hidden_layers"},
           {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0", "rms_norm_eps"},
           {"\"block_size\": 8", "\"block_size\": 1", "dflash_config.block_size"},
           {"\"block_size\": 8", "\"block_size\": 17", "dflash_config.block_size"},
           {"\"block_size\": 8,", "", "dflash_config.block_size"},
           {"\"conv_kernel_size\": 2", "\"conv_kernel_size\": 3", "dflash_config.conv_kernel_size"},
           {"\"conv_group_size\": 16", "\"conv_group_size\": 15", "dflash_config.conv_group_size"},
           {"\"selector_rank\": 256", "\"selector_rank\": 0", "dflash_config.selector_rank"},
           {"\"selector_top_k\": 16", "\"selector_top_k\": 17", "dflash_config.selector_top_k"},
           {"\"mask_token_id\": 2024", "\"mask_token_id\": 2048", "dflash_config.mask_token_id"},
           {"\"mask_token_id\": 2024", "\"mask_token_id\": -1", "dflash_config.mask_token_id"},
           {"      1,\n      3,\n      6\n", "", "dflash_config.target_layer_ids"},
           {"      1,\n      3,\n      6\n", "3, 1", "dflash_config.target_layer_ids"},
           {"      1,\n      3,\n      6\n", "1, 8", "dflash_config.target_layer_ids[1]"},
           {"\"block_size\": 8", "\"block_size\": 8, \"sample_from_anchor\": true", "dflash_config.sample_from_anchor"},
           {"\"block_size\": 8", "\"block_size\": 8, \"sliding_window_non_causal\": true",
            "dflash_config.sliding_window_non_causal"},
           {"\"dflash_config\"", "\"dspark_config\"", "dflash_config"},
       }) {
    const std::string message = error_of([&] { parse_drafter_shape(changed(bad.from, bad.to), "d/config.json"); });
    expect_parts(message, {"d/config.json: " + bad.key + ":"});
  }
  error_of([] { parse_drafter_shape("[]"); });
  error_of([] { parse_drafter_shape("{\"a\": 1"); });
  error_of([] { parse_drafter_shape(std::string(100'000, '[')); });
  EXPECT_THROW(read_drafter_shape("/nonexistent/folder"), Error);
}

TEST(Drafter, WhatDoesNotFitTheTarget) {
  const Shape target = read_shape(nano);
  const DrafterShape fits = read_drafter_shape(nano_drafter);
  const auto message = [&](auto change) {
    DrafterShape shape = fits;
    change(shape);
    return error_of([&] { check_drafter_fits(shape, target, "d/config.json"); });
  };
  expect_parts(message([](DrafterShape& s) { s.hidden_size = 512; }),
               {"d/config.json: hidden_size", "512", "256, the target model's"});
  expect_parts(message([](DrafterShape& s) { s.vocab_size = 2049; }), {"vocab_size", "2049", "2048"});
  expect_parts(message([](DrafterShape& s) {
                 s.target_layer_ids = {1, 8};
               }),
               {"dflash_config.target_layer_ids", "1, 8", "below 8"});
  expect_parts(message([](DrafterShape& s) { s.num_target_layers = 45; }), {"num_target_layers", "45", "8"});
  expect_parts(message([](DrafterShape& s) { s.mask_token_id = 2048; }),
               {"dflash_config.mask_token_id", "2048", "below 2048"});
}

TEST(Drafter, NanosTensors) {
  const DrafterShape shape = read_drafter_shape(nano_drafter);
  const Checkpoint checkpoint = Checkpoint::open(nano_drafter);
  EXPECT_EQ(checkpoint.tensors().size(), 15u * 3 + 6);
  const DrafterWeights weights = load_drafter_weights(checkpoint, shape);
  EXPECT_EQ(weights.layers.size(), 3u);
  EXPECT_EQ(weights.fc.in_features, 3 * 256);
  EXPECT_EQ(weights.layers[1].attention_conv.base_kernel.size(), 2u * 2 * 256);
  EXPECT_EQ(weights.layers[1].mlp_conv.kernel_projection.out_features, 64);
  EXPECT_EQ(weights.predecessor_codebook.out_features, 2048);
  int64_t parameters = 0;
  for (const Tensor* tensor : checkpoint.tensors()) parameters += tensor->elements();
  EXPECT_EQ(parameters, shape.parameters());
}

// A folder with nano's tensors after `change`, and the error of loading it.
std::string load_error(const std::function<void(std::vector<testing::StoredTensor>&)>& change) {
  const testing::TemporaryFolder folder;
  std::vector<testing::StoredTensor> tensors = testing::read_tensors(Checkpoint::open(nano_drafter));
  change(tensors);
  testing::write_file(folder.path() / "model.safetensors", testing::safetensors_bytes(tensors));
  const DrafterShape shape = read_drafter_shape(nano_drafter);
  return error_of([&] { load_drafter_weights(Checkpoint::open(folder.path()), shape); });
}

testing::StoredTensor& named(std::vector<testing::StoredTensor>& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
}

TEST(Drafter, EveryTensorIsMissed) {
  const Checkpoint whole = Checkpoint::open(nano_drafter);
  for (const Tensor* tensor : whole.tensors()) {
    if (tensor->name.starts_with("layers.0.") || tensor->name.starts_with("layers.1.")) continue;  // as layers.2
    expect_parts(load_error([&](auto& tensors) {
                   std::erase_if(tensors, [&](const auto& t) { return t.name == tensor->name; });
                 }),
                 {"tensor " + tensor->name, "missing"});
  }
}

TEST(Drafter, WrongTensorsAreNamed) {
  expect_parts(load_error([](auto& tensors) {
                 named(tensors, "fc.weight").shape = {768, 256};
               }),
               {"model.safetensors: tensor fc.weight", "[768, 256]", "[256, 768]"});
  expect_parts(load_error([](auto& tensors) {
                 named(tensors, "layers.2.mlp_conv.base_kernel").shape = {4, 256};
               }),
               {"layers.2.mlp_conv.base_kernel", "[4, 256]", "[2, 2, 256]"});
  expect_parts(load_error([](auto& tensors) { named(tensors, "norm.weight").dtype = DType::f16; }),
               {"norm.weight", "F16", "BF16 or F32"});
  // A drafter with an embedding of its own is another kind (spec/speculation.md 1.7).
  expect_parts(load_error([](auto& tensors) {
                 tensors.push_back({"embed_tokens.weight", DType::bf16, {2, 2}, std::string(8, '\0')});
               }),
               {"embed_tokens.weight", "unknown"});
}

TEST(Drafter, ATruncatedFileIsNamed) {
  const testing::TemporaryFolder folder;
  const std::string bytes = testing::read_file(nano_drafter / "model.safetensors");
  for (const size_t length : {size_t{0}, size_t{7}, size_t{1000}, bytes.size() / 2, bytes.size() - 1}) {
    testing::write_file(folder.path() / "model.safetensors", bytes.substr(0, length));
    expect_parts(error_of([&] { Checkpoint::open(folder.path()); }), {"model.safetensors"});
  }
}

TEST(Drafter, F32TensorsAreReadAsTheyAre) {
  const testing::TemporaryFolder folder;
  std::vector<testing::StoredTensor> tensors = testing::read_tensors(Checkpoint::open(nano_drafter));
  std::vector<float> values(256);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / static_cast<float>(i + 3);
  testing::StoredTensor& norm = named(tensors, "norm.weight");
  norm.dtype = DType::f32;
  norm.bytes = testing::bytes_of(values);
  testing::write_file(folder.path() / "model.safetensors", testing::safetensors_bytes(tensors));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(load_drafter_weights(checkpoint, read_drafter_shape(nano_drafter)).norm, values);
}

}  // namespace
}  // namespace tandem::model::drafter_test
