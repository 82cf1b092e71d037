// What configurations say, against the sizes of the published checkpoints of GLM-5.3-Flash.
#include "engine/plan_formats.h"

#include <cmath>

#include "base/error.h"
#include "engine/plan_weights.h"

namespace tandem::engine::plan_formats_test {
namespace {

const std::string source = TANDEM_SOURCE_DIR;

WeightFormat stated(const std::string& quantization) {
  return format_of_config(R"({"quantization_config": )" + quantization + "}", "config.json");
}

WeightBytes flash(const WeightFormat& format) {
  return weights_in_format(model::read_shape(source + "/tests/golden/configs/glm-5.3-flash.json"), format);
}

// With its vision tower of 1.13 GB.
double gb(const std::string& quantization) {
  return static_cast<double>(flash(stated(quantization)).total) / 1e9 + 1.13;
}

// Formats of a component's weights, the MTP layer's first letter "m" before them, in the order of rows.
std::string formats_of(const std::string& quantization, model::Component component) {
  std::string names;
  for (const model::FormatRow& row : flash(stated(quantization)).rows)
    if (row.component == component) names += (row.mtp ? "m:" : "") + row.format + "; ";
  return names;
}

constexpr const char* nvfp4_experts_fp8_mtp = R"({"quant_method": "compressed-tensors", "format": "mixed-precision",
    "config_groups": {
      "group_0": {"format": "nvfp4-pack-quantized", "targets": ["re:.*layers\\.(\\d|[1-3]\\d|4[0-4])\\.mlp\\.experts\\..*"],
                  "weights": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}},
      "group_1": {"format": "float-quantized", "targets": ["re:model\\.layers\\.45\\.mlp\\.experts\\..*_proj"],
                  "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}}},
    "ignore": ["lm_head", "re:.*self_attn.*"]})";

TEST(PlanFormats, FormatsByName) {
  EXPECT_EQ(parse_weight_format("exl3:3.5").name(), "exl3:3.5");
  for (const char* bad : {"", "int4", "exl3", "exl3:", "exl3:0", "exl3:9", "exl3:4x", "exl3:nan", "exl3:-4", "BF16"})
    EXPECT_THROW(parse_weight_format(bad), Error) << bad;
  for (const double bad : {0.0, -1.0, 9.0, std::nan("")}) EXPECT_THROW(flat_format(bad), Error) << bad;
}

// spec/quantization.md 3.4 and spec/model.md 8.1, 8.3.
TEST(PlanFormats, PublishedSizes) {
  EXPECT_NEAR(gb(R"({"quant_method": "exl3", "bits": 4, "head_bits": 16, "scope": "glm53_routed_experts_only"})"),
              176.2, 0.8);
  EXPECT_NEAR(gb(R"({"quant_method": "exl3", "bits": 4.05, "head_bits": 6, "codebook": "mul1"})"), 165, 1);
  EXPECT_NEAR(gb(R"({"quant_method": "exl3", "bits": 3.05, "head_bits": 6})"), 125, 1);
  EXPECT_NEAR(gb(R"({"quant_method": "exl3", "bits": 2.05, "head_bits": 6})"), 85, 1);
  EXPECT_NEAR(gb(R"({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})"), 328.3, 0.3);
  EXPECT_NEAR(gb(nvfp4_experts_fp8_mtp), 197.9, 0.2);
  EXPECT_NEAR(gb(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*",
                     "*shared_experts*", "model.language_model.layers.45*", "model.visual*"]})"),
              204.4, 0.2);
}

TEST(PlanFormats, ExllamaScopes) {
  using model::Component;
  const char* whole = R"({"quant_method": "exl3", "bits": 4, "head_bits": 6, "mtp_bits": 5})";
  EXPECT_EQ(formats_of(whole, Component::lm_head), "EXL3 6 bits; ");
  EXPECT_EQ(formats_of(whole, Component::routed_experts), "EXL3 4 bits; m:EXL3 5 bits; ");
  EXPECT_EQ(formats_of(whole, Component::router), "BF16; F32; m:BF16; m:F32; ");
  // b_proj has 64 outputs; convolutions and norms are no linear layers.
  EXPECT_EQ(formats_of(whole, Component::kda), "BF16; EXL3 4 bits; F32; ");
  const char* by_layer = R"({"quant_method": "exl3", "bits": 2.14, "layer_bits": {"24": 3, "45": 3}})";
  EXPECT_EQ(formats_of(by_layer, Component::routed_experts), "EXL3 2.14 bits; EXL3 3 bits; m:EXL3 3 bits; ");
  EXPECT_EQ(formats_of(by_layer, Component::shared_expert), "BF16; m:BF16; ");
  EXPECT_EQ(stated(whole).name(), "exl3:4, every linear layer");
}

// As `tandem quantize --experts exl3:4` lists what it leaves (docs/quantize.md).
TEST(PlanFormats, ExllamaListsOfModules) {
  using model::Component;
  const char* experts = R"({"quant_method": "exl3", "bits": 4, "head_bits": 16, "modules_to_not_convert": ["lm_head",
      "model.language_model.layers.0.self_attn.q_proj", "model.language_model.layers.45.mlp.experts", "*.mlp.up_proj"]})";
  EXPECT_EQ(formats_of(experts, Component::lm_head), "BF16; ");
  EXPECT_EQ(formats_of(experts, Component::routed_experts), "EXL3 4 bits; m:BF16; ");
  EXPECT_EQ(formats_of(experts, Component::shared_expert), "EXL3 4 bits; m:EXL3 4 bits; ");
  EXPECT_EQ(formats_of(experts, Component::dense_mlp), "BF16; EXL3 4 bits; ");
  EXPECT_EQ(stated(experts).name(), "exl3:4, linear layers that are not listed");
  const char* all = R"({"quant_method": "exl3", "bits": 4, "modules_to_not_convert": []})";
  EXPECT_EQ(formats_of(all, Component::dense_mlp), "EXL3 4 bits; ");
}

TEST(PlanFormats, ListsOfModules) {
  using model::Component;
  const auto mla = [](const std::string& kept) {
    return formats_of(R"({"quant_method": "fp8", "modules_to_not_convert": [)" + kept + "]}", Component::mla);
  };
  EXPECT_EQ(formats_of(R"({"quant_method": "fp8"})", Component::lm_head), "BF16; ") << "the published set";
  EXPECT_EQ(formats_of(R"({"quant_method": "fp8", "modules_to_not_convert": []})", Component::lm_head),
            "F8_E4M3 128x128 blocks; ");
  EXPECT_EQ(mla(""), "BF16; F8_E4M3 128x128 blocks; m:BF16; m:F8_E4M3 128x128 blocks; ") << "norms stay";
  EXPECT_EQ(mla(R"("self_attn")"), "BF16; m:BF16; ");
  EXPECT_EQ(mla(R"("self_att")"), mla("")) << "whole names between dots";
  EXPECT_EQ(mla(R"("*self_att*")"), "BF16; m:BF16; ");
  EXPECT_EQ(mla(R"("re:.*self_att")"), "BF16; m:BF16; ");
  EXPECT_EQ(mla(R"("re:self_att")"), mla("")) << "from the begin of the name";
  EXPECT_EQ(mla(R"("model.language_model.layers.45", "model.layers.45")"), "BF16; F8_E4M3 128x128 blocks; m:BF16; ");
  EXPECT_EQ(mla(R"("layers.4")"), mla(R"("model.layers.4.*")")) << "not layer 45";
  EXPECT_NE(mla(R"("layers.3")"), "BF16; m:BF16; ");
}

TEST(PlanFormats, GroupsOfCompressedTensors) {
  using model::Component;
  EXPECT_EQ(formats_of(nvfp4_experts_fp8_mtp, Component::routed_experts), "NVFP4; m:F8_E4M3 128x128 blocks; ");
  EXPECT_EQ(formats_of(nvfp4_experts_fp8_mtp, Component::dense_mlp), "BF16; ");
  // A module's own name goes before its class, wherever the group stands.
  const char* both = R"({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {
      "a": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "block_structure": [128, 128]}},
      "b": {"targets": ["shared_experts"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}})";
  EXPECT_EQ(formats_of(both, Component::shared_expert), "NVFP4; m:NVFP4; ");
  EXPECT_EQ(formats_of(both, Component::dense_mlp), "F8_E4M3 128x128 blocks; ");
  EXPECT_EQ(formats_of(both, Component::lm_head), "BF16; ");
}

TEST(PlanFormats, MixedModelOpt) {
  using model::Component;
  const char* mixed = R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
      "model.language_model.layers.3.mlp.experts": {"quant_algo": "NVFP4"},
      "model.language_model.layers.0.mlp.up_proj": {"quant_algo": "FP8_PB_WO"}}})";
  EXPECT_EQ(formats_of(mixed, Component::routed_experts), "BF16; NVFP4; m:BF16; ");
  EXPECT_EQ(formats_of(mixed, Component::dense_mlp), "BF16; F8_E4M3 128x128 blocks; ");
}

TEST(PlanFormats, WhatConfigsMayNotSay) {
  EXPECT_EQ(format_of_config("{}", "config.json").name(), "bf16");
  const std::string groups =
      R"({"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["Linear"], "weights": )";
  for (
      const auto& [json, word] : std::vector<std::pair<std::string, std::string>>{
          {"{}", "quant_method"},
          {R"({"quant_method": "awq"})", "quant_method"},
          {R"({"quant_method": "exl3"})", "bits"},
          {R"({"quant_method": "exl3", "bits": 0})", "bits"},
          {R"({"quant_method": "exl3", "bits": "mixed_tensor"})", "bits"},
          {R"({"quant_method": "exl3", "bits": 4, "head_bits": 17})", "head_bits"},
          {R"({"quant_method": "exl3", "bits": 4, "layer_bits": {"x": 3}})", "layer_bits.x"},
          {R"({"quant_method": "fp8", "modules_to_not_convert": ["re:("]})", "modules_to_not_convert"},
          {R"({"quant_method": "exl3", "bits": 4, "modules_to_not_convert": [4]})", "modules_to_not_convert"},
          {R"({"quant_method": "fp8", "modules_to_not_convert": ["re:)" + std::string(600, 'a') + R"("]})", "500"},
          {R"({"quant_method": "fp8", "modules_to_not_convert": 5})", "modules_to_not_convert"},
          {R"({"quant_method": "modelopt", "quant_algo": "FP8"})", "quant_algo"},
          {R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})", "quantized_layers"},
          {R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "X"}}})",
           "quantized_layers.a.quant_algo"},
          {R"({"quant_method": "compressed-tensors"})", "config_groups"},
          {groups + R"({"num_bits": 4, "type": "int", "group_size": 16}}}})", "type"},
          {groups + R"({"num_bits": 4, "type": "float", "group_size": 32}}}})", "num_bits"},
          {groups + R"({"num_bits": 8, "type": "float", "strategy": "channel"}}}})", "block_structure"},
          {"5", "quantization_config"}}) {
    try {
      stated(json);
      ADD_FAILURE() << json;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::bad_file);
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(format_of_config("[", "config.json"), Error);
}

}  // namespace
}  // namespace tandem::engine::plan_formats_test
