// config.json: the values that are read, and every key that is refused with its name.
#include "model/shape.h"

#include <nlohmann/json.hpp>

#include "model/testing/checkpoint_files.h"

namespace tandem::model::shape_test {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::expect_parts;

json real_config() {
  return json::parse(testing::read_file(testing::source_dir() / "tests/golden/configs/glm-5.3-flash.json"));
}

// The message with which a change to the real configuration is refused. `key` is a JSON pointer inside text_config.
std::string refusal(const std::string& key, const json& value) {
  json config = real_config();
  config[json::json_pointer("/text_config" + key)] = value;
  return error_of([&] { parse_shape(config.dump()); });
}

Shape accepted(const std::string& key, const json& value) {
  json config = real_config();
  config[json::json_pointer("/text_config" + key)] = value;
  return parse_shape(config.dump());
}

// An object that holds `levels` arrays inside each other after `start`.
std::string nested(const std::string& start, size_t levels) {
  return fmt::format("{}{}{}}}", start, std::string(levels, '['), std::string(levels, ']'));
}

json without(const std::string& key) {
  json config = real_config();
  const json::json_pointer pointer("/text_config" + key);
  config[pointer.parent_pointer()].erase(pointer.back());
  return config;
}

TEST(Shape, ReadsTheRealConfiguration) {  // spec/model.md 1.1
  const Shape shape = parse_shape(real_config().dump());
  EXPECT_EQ(shape.vocab_size, 154880);
  EXPECT_EQ(shape.hidden_size, 4096);
  EXPECT_EQ(shape.num_hidden_layers, 45);
  EXPECT_EQ(shape.num_nextn_predict_layers, 1);
  EXPECT_EQ(shape.max_position_embeddings, 1048576);
  EXPECT_EQ(shape.rms_norm_eps, 1e-5f);
  EXPECT_EQ(shape.intermediate_size, 12288);
  EXPECT_EQ(shape.moe_intermediate_size, 2048);
  EXPECT_EQ(shape.n_routed_experts, 288);
  EXPECT_EQ(shape.num_experts_per_tok, 8);
  EXPECT_EQ(shape.n_shared_experts, 1);
  EXPECT_TRUE(shape.norm_topk_prob);
  EXPECT_EQ(shape.routed_scaling_factor, 2.5f);
  EXPECT_EQ(shape.swiglu_limit, 10.0f);
  EXPECT_EQ(shape.num_attention_heads, 64);
  EXPECT_EQ(shape.q_lora_rank, 1536);
  EXPECT_EQ(shape.kv_lora_rank, 512);
  EXPECT_EQ(shape.qk_nope_head_dim, 256);
  EXPECT_EQ(shape.v_head_dim, 256);
  EXPECT_EQ(shape.index_n_heads, 32);
  EXPECT_EQ(shape.index_head_dim, 128);
  EXPECT_EQ(shape.index_topk, 2048);
  EXPECT_EQ(shape.index_kpool, 4);
  EXPECT_EQ(shape.hc_mult, 4);
  EXPECT_EQ(shape.hc_sinkhorn_iters, 20);
  EXPECT_EQ(shape.hc_eps, 1e-6f);
  EXPECT_EQ(shape.kda_num_heads, 64);
  EXPECT_EQ(shape.kda_head_dim, 128);
  EXPECT_EQ(shape.short_conv_kernel_size, 4);
  EXPECT_EQ(shape.gate_lower_bound, -5.0f);
  EXPECT_TRUE(shape.index_share_for_mtp_iteration);
  EXPECT_EQ(shape.eos_token_ids, (std::vector<int32_t>{154820, 154827, 154829}));
  EXPECT_EQ(shape.pad_token_id, 154820);
  EXPECT_EQ(shape.image_token_id, 154854);
  EXPECT_EQ(shape.video_token_id, 154855);
  EXPECT_EQ(shape.model_type, "glm5_next");
}

TEST(Shape, ScheduleIsThatOfTheLists) {  // spec/model.md 1.2
  const Shape shape = parse_shape(real_config().dump());
  ASSERT_EQ(shape.layer_types.size(), 45u);
  for (size_t i = 0; i < 45; ++i) {
    EXPECT_EQ(shape.layer_types[i], i % 4 == 3 ? AttentionKind::dsa : AttentionKind::kda) << i;
    EXPECT_EQ(shape.mlp_layer_types[i], i < 3 ? FeedForwardKind::dense : FeedForwardKind::moe) << i;
  }
}

TEST(Shape, DerivedWidths) {  // spec/model.md 1.1a, 2.3, 4.5
  const Shape shape = parse_shape(real_config().dump());
  EXPECT_EQ(shape.kda_width(), 8192);
  EXPECT_EQ(shape.mhc_rows(), 24);
  EXPECT_EQ(shape.pool_budget(), 512);
  EXPECT_EQ(shape.max_selected(), 2051);
  EXPECT_EQ(shape.shared_width(), 2048);
}

TEST(Shape, ReadsTheTestModels) {
  for (const char* folder : {"models/nano", "tests/golden/tinyA", "tests/golden/tinyB"}) {
    EXPECT_GT(read_shape(testing::source_dir() / folder).vocab_size, 0) << folder;
  }
  const Shape shape = read_shape(testing::source_dir() / "tests/golden/tinyA/config.json");
  EXPECT_EQ(shape.shared_width(), 80);
  EXPECT_EQ(shape.layer_types[5], AttentionKind::dsa);
  EXPECT_EQ(shape.mlp_layer_types[3], FeedForwardKind::dense);
}

TEST(Shape, AcceptsOtherSpellings) {
  json config = real_config();
  for (json& kind : config["text_config"]["layer_types"]) {
    if (kind == "deepseek_sparse_attention") kind = "full_attention";
  }
  EXPECT_EQ(parse_shape(config.dump()).layer_types[3], AttentionKind::dsa);
  EXPECT_EQ(accepted("/eos_token_id", 7).eos_token_ids, std::vector<int32_t>{7});
  EXPECT_EQ(accepted("/swiglu_limit", 10).swiglu_limit, 10.0f) << "an integer is a number";
  EXPECT_EQ(accepted("/linear_attn_config/gate_lower_bound", -5).gate_lower_bound, -5.0f);
  EXPECT_EQ(accepted("/pad_token_id", nullptr).pad_token_id, 154820) << "falls back to the first stop id";
  EXPECT_EQ(parse_shape(without("/num_nextn_predict_layers").dump()).num_nextn_predict_layers, 0);
}

TEST(Shape, OptionalKeysMayBeAbsent) {
  for (const char* key :
       {"/first_k_dense_replace", "/linear_attn_config/kda_layers", "/linear_attn_config/full_attn_layers",
        "/indexer_types", "/qk_head_dim", "/head_dim", "/moe_router_dtype", "/num_key_value_heads",
        "/attention_dropout", "/index_share_for_mtp_iteration"}) {
    EXPECT_EQ(parse_shape(without(key).dump()).num_hidden_layers, 45) << key;
  }
}

TEST(Shape, EntriesBeyondTheLayersAreDropped) {  // spec/model.md 9.3: at least num_hidden_layers long
  json config = real_config();
  config["text_config"]["layer_types"].push_back("deepseek_sparse_attention");
  config["text_config"]["mlp_layer_types"].push_back("sparse");
  config["text_config"]["linear_attn_config"]["full_attn_layers"].push_back(45);
  EXPECT_EQ(parse_shape(config.dump()).layer_types.size(), 45u);
}

TEST(Shape, MissingKeysAreNamed) {
  for (const char* key : {"/vocab_size",
                          "/hidden_size",
                          "/num_hidden_layers",
                          "/max_position_embeddings",
                          "/rms_norm_eps",
                          "/eos_token_id",
                          "/layer_types",
                          "/mlp_layer_types",
                          "/intermediate_size",
                          "/moe_intermediate_size",
                          "/n_routed_experts",
                          "/num_experts_per_tok",
                          "/n_shared_experts",
                          "/norm_topk_prob",
                          "/routed_scaling_factor",
                          "/swiglu_limit",
                          "/num_attention_heads",
                          "/q_lora_rank",
                          "/kv_lora_rank",
                          "/qk_nope_head_dim",
                          "/qk_rope_head_dim",
                          "/v_head_dim",
                          "/index_n_heads",
                          "/index_head_dim",
                          "/index_topk",
                          "/index_kpool",
                          "/hc_mult",
                          "/hc_sinkhorn_iters",
                          "/hc_eps",
                          "/linear_attn_config",
                          "/linear_attn_config/num_heads",
                          "/linear_attn_config/head_dim",
                          "/linear_attn_config/short_conv_kernel_size",
                          "/linear_attn_config/gate_lower_bound"}) {
    const std::string text = without(key).dump();
    expect_parts(error_of([&] { parse_shape(text); }), {json::json_pointer(key).back(), "missing"});
  }
  EXPECT_EQ(error_of([] { parse_shape(without("/linear_attn_config/gate_lower_bound").dump(), "here/config.json"); }),
            "here/config.json: text_config.linear_attn_config.gate_lower_bound: missing; expected a number");
}

TEST(Shape, WrongTypesAreNamed) {
  EXPECT_EQ(refusal("/hidden_size", "big"),
            "config.json: text_config.hidden_size: found \"big\"; expected an integer in 1..65536");
  expect_parts(refusal("/hidden_size", true), {"hidden_size", "found true"});
  expect_parts(refusal("/hidden_size", 4096.0), {"hidden_size", "found 4096.0", "integer"});
  expect_parts(refusal("/hidden_size", nullptr), {"hidden_size", "found null"});
  expect_parts(refusal("/q_lora_rank", nullptr), {"q_lora_rank", "found null"});
  expect_parts(refusal("/swiglu_limit", true), {"swiglu_limit", "found true", "a number"});
  expect_parts(refusal("/swiglu_limit", nullptr), {"swiglu_limit", "found null"});
  expect_parts(refusal("/norm_topk_prob", 1), {"norm_topk_prob", "found 1", "true or false"});
  expect_parts(refusal("/hidden_act", 1), {"hidden_act", "a string"});
  expect_parts(refusal("/layer_types", "all"), {"layer_types", "array of strings"});
  expect_parts(refusal("/layer_types/7", 3), {"layer_types[7]", "found 3"});
  expect_parts(refusal("/eos_token_id", "stop"), {"eos_token_id", "\"stop\""});
  expect_parts(refusal("/eos_token_id", {1, 2.5}), {"eos_token_id[1]", "2.5"});
  expect_parts(refusal("/linear_attn_config", 3), {"linear_attn_config", "an object"});
  expect_parts(refusal("/linear_attn_config/kda_layers", {"0"}), {"kda_layers[0]"});
  expect_parts(refusal("/attention_dropout", "none"), {"attention_dropout", "a number"});
}

TEST(Shape, ValuesOutsideTheRangeAreNamed) {
  for (const char* key : {"/vocab_size",
                          "/hidden_size",
                          "/num_hidden_layers",
                          "/max_position_embeddings",
                          "/intermediate_size",
                          "/moe_intermediate_size",
                          "/n_routed_experts",
                          "/num_experts_per_tok",
                          "/n_shared_experts",
                          "/num_attention_heads",
                          "/q_lora_rank",
                          "/kv_lora_rank",
                          "/qk_nope_head_dim",
                          "/v_head_dim",
                          "/index_n_heads",
                          "/index_head_dim",
                          "/index_topk",
                          "/index_kpool",
                          "/hc_mult",
                          "/hc_sinkhorn_iters",
                          "/linear_attn_config/num_heads",
                          "/linear_attn_config/head_dim",
                          "/linear_attn_config/short_conv_kernel_size"}) {
    for (const json& value : {json(0), json(-1), json(int64_t{1} << 40), json(UINT64_MAX)}) {
      expect_parts(refusal(key, value), {json::json_pointer(key).back(), "found " + value.dump()});
    }
  }
  for (const char* key : {"/rms_norm_eps", "/hc_eps", "/swiglu_limit", "/routed_scaling_factor"}) {
    for (const json& value : {json(0), json(-1.0), json(1e-60), json(1e300)}) {
      expect_parts(refusal(key, value), {json::json_pointer(key).back(), "found " + value.dump()});
    }
  }
  for (const json& value : {json(0.0), json(5.0), json(-1e9), json(-1e-60)}) {
    expect_parts(refusal("/linear_attn_config/gate_lower_bound", value), {"gate_lower_bound", "found "});
  }
  expect_parts(refusal("/num_nextn_predict_layers", 2), {"num_nextn_predict_layers", "0..1"});
  expect_parts(refusal("/num_experts_per_tok", 289), {"num_experts_per_tok", "289", "1..288"});
  expect_parts(refusal("/index_topk", 2050), {"index_topk", "multiple of index_kpool, 4"});
  expect_parts(refusal("/eos_token_id", 154880), {"eos_token_id", "0..154879"});
  expect_parts(refusal("/eos_token_id", json::array()), {"eos_token_id"});
  expect_parts(refusal("/pad_token_id", 154880), {"pad_token_id"});
}

TEST(Shape, WhatThisProgramDoesNotComputeIsRefused) {
  expect_parts(refusal("/model_type", "kimi_linear"), {"text_config.model_type", "kimi_linear", "glm5_next_text"});
  expect_parts(refusal("/qk_rope_head_dim", 64), {"qk_rope_head_dim", "found 64"});
  expect_parts(refusal("/qk_head_dim", 320), {"qk_head_dim", "256"});
  expect_parts(refusal("/num_key_value_heads", 8), {"num_key_value_heads", "64, the same as num_attention_heads"});
  expect_parts(refusal("/mla_use_nope", false), {"mla_use_nope"});
  expect_parts(refusal("/index_kpool_always_select_tail", false), {"index_kpool_always_select_tail", "found false"});
  expect_parts(refusal("/index_kpool_compress", false), {"index_kpool_compress"});
  expect_parts(refusal("/indexer_types/4", "shared"), {"indexer_types[4]", "shared"});
  expect_parts(refusal("/indexer_types", {"full"}), {"indexer_types", "at least 45"});
  expect_parts(refusal("/mhc", false), {"text_config.mhc"});
  expect_parts(refusal("/n_group", 8), {"n_group", "found 8"});
  expect_parts(refusal("/topk_group", 4), {"topk_group"});
  expect_parts(refusal("/attention_bias", true), {"attention_bias"});
  expect_parts(refusal("/tie_word_embeddings", true), {"tie_word_embeddings"});
  expect_parts(refusal("/hidden_act", "gelu"), {"hidden_act", "gelu", "silu"});
  expect_parts(refusal("/scoring_func", "softmax"), {"scoring_func", "softmax"});
  expect_parts(refusal("/topk_method", "greedy"), {"topk_method"});
  expect_parts(refusal("/moe_router_dtype", "bfloat16"), {"moe_router_dtype"});
}

TEST(Shape, ListsMustAgree) {
  expect_parts(refusal("/num_hidden_layers", 46), {"layer_types", "array of 45", "at least 46"});
  expect_parts(refusal("/layer_types/4", "sliding_attention"), {"layer_types[4]", "sliding_attention"});
  expect_parts(refusal("/mlp_layer_types/4", "moe"), {"mlp_layer_types[4]", "moe"});
  expect_parts(refusal("/mlp_layer_types", json::array()), {"mlp_layer_types"});
  expect_parts(refusal("/first_k_dense_replace", 2), {"first_k_dense_replace", "layer 2"});
  expect_parts(refusal("/linear_attn_config/full_attn_layers", {4, 8, 12}), {"full_attn_layers", "layer_types"});
  expect_parts(refusal("/linear_attn_config/kda_layers", {0, 1, 2, 47}), {"kda_layers[3]"});
}

TEST(Shape, TopLevelIsChecked) {
  const auto refused = [](const std::string& key, const json& value) {
    json config = real_config();
    config[key] = value;
    return error_of([&] { parse_shape(config.dump()); });
  };
  EXPECT_EQ(refused("model_type", "llama"), "config.json: model_type: found \"llama\"; expected \"glm5_next\"");
  expect_parts(refused("text_config", 5), {"text_config", "found 5", "an object"});
  expect_parts(refused("tie_word_embeddings", true), {"tie_word_embeddings"});
  expect_parts(refused("image_token_id", 154880), {"image_token_id"});
  expect_parts(refused("quantization_config", {{"weight_block_size", {64, 64}}}),
               {"quantization_config.weight_block_size"});
  json config = real_config();
  config.erase("model_type");
  expect_parts(error_of([&] { parse_shape(config.dump()); }), {"model_type: missing"});
}

TEST(Shape, TextThatIsNoConfigurationIsRefused) {
  expect_parts(error_of([] { parse_shape(""); }), {"config.json", "not valid JSON"});
  expect_parts(error_of([] { parse_shape("{\"model_type\": "); }), {"not valid JSON"});
  expect_parts(error_of([] { parse_shape("{\"a\": \"\xff\"}"); }), {"not valid JSON"});
  expect_parts(error_of([] { parse_shape("{} {}"); }), {"not valid JSON"});
  expect_parts(error_of([] { parse_shape("{\"a\": 1e999}"); }), {"config.json"});
  expect_parts(error_of([] { parse_shape("[1]"); }), {"an array of 1", "a JSON object"});
  expect_parts(error_of([] { parse_shape(R"({"a": 1, "a": 2})"); }), {"config.json: a", "twice"});
  expect_parts(error_of([] { parse_shape(nested("{\"a\": ", 200)); }), {"nesting", "128"});
  expect_parts(error_of([] { parse_shape(nested("{\"a\": ", 1'000'000)); }), {"nesting"});
  const std::string deepest = nested(R"({"model_type": "x", "a": )", 127);
  expect_parts(error_of([&] { parse_shape(deepest); }), {"model_type"});
}

TEST(Shape, FoldersAndFilesThatAreNotThere) {
  const testing::TemporaryFolder folder;
  expect_parts(error_of([&] { read_shape(folder.path()); }),
               {(folder.path() / "config.json").string(), "does not exist"});
  expect_parts(error_of([&] { read_shape(folder.path() / "absent"); }), {"absent", "does not exist"});
}

}  // namespace
}  // namespace tandem::model::shape_test
