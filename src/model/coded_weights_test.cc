// Loading of NVFP4 and EXL3 modules: both dialects, both layouts, mixtures, and everything that is refused.
#include "model/coded_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "model/split.h"
#include "model/testing/coded_tensors.h"
#include "model/weights.h"
#include "ops/linear/decode.h"

namespace tandem::model::coded_weights_test {
namespace {

using testing::Choice;
using testing::Coding;
using testing::error_of;
using testing::expect_parts;
using testing::StoredTensor;

const std::string layer = "model.language_model.layers.0.";
const std::string module = layer + "mlp.gate_proj";                         // [512, 256]
const std::string expert = "model.language_model.layers.1.mlp.experts.3.";  // up_proj [128, 256]

class CodedLoader : public ::testing::Test {
 protected:
  static const std::vector<StoredTensor>& nano() {
    static const auto tensors = testing::read_tensors(Checkpoint::open(testing::source_dir() / "models/nano"));
    return tensors;
  }
  static const Shape& shape() {
    static const Shape s = read_shape(testing::source_dir() / "models/nano");
    return s;
  }

  // nano with one module coded.
  static std::vector<StoredTensor> with(const std::string& name, Coding coding, testing::Exl3Style style = {}) {
    return testing::coded_tensors(nano(),
                                  [&](const std::string& weight) {
                                    return weight == name + ".weight" ? Choice{coding, style} : Choice{};
                                  })
        .coded;
  }

  Checkpoint written(const std::vector<StoredTensor>& tensors) {
    testing::write_file(folder_.path() / "model.safetensors", testing::safetensors_bytes(tensors));
    return Checkpoint::open(folder_.path());
  }
  Matrix gate_of(const std::vector<StoredTensor>& tensors, WeightOptions options = {}) {
    checkpoints_.push_back(written(tensors));
    return load_text_weights(checkpoints_.back(), shape(), options).layers[0].mlp->gate_proj;
  }
  std::string refused(const std::vector<StoredTensor>& tensors) {
    const Checkpoint checkpoint = written(tensors);
    return error_of([&] { load_text_weights(checkpoint, shape()); });
  }
  template <typename Damage>
  std::string damaged(Coding coding, const Damage& damage, testing::Exl3Style style = {}) {
    std::vector<StoredTensor> tensors = with(module, coding, style);
    damage(tensors);
    return refused(tensors);
  }

  testing::TemporaryFolder folder_;
  std::vector<Checkpoint> checkpoints_;
};

StoredTensor& named(std::vector<StoredTensor>& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  if (found == tensors.end()) throw std::runtime_error(name);
  return *found;
}

void remove(std::vector<StoredTensor>& tensors, const std::string& name) {
  ASSERT_EQ(std::erase_if(tensors, [&](const auto& t) { return t.name == name; }), 1u) << name;
}

// Takes bytes away from the end of a tensor and the same share of its shape's last dimension.
void shorten(StoredTensor& tensor, int64_t last) {
  tensor.bytes.resize(tensor.bytes.size() / static_cast<size_t>(tensor.shape.back()) * static_cast<size_t>(last));
  tensor.shape.back() = last;
}

template <typename T>
void set(StoredTensor& tensor, size_t index, T value) {
  std::memcpy(tensor.bytes.data() + index * sizeof value, &value, sizeof value);
}

TEST_F(CodedLoader, EachFormIsRecognised) {
  EXPECT_EQ(gate_of(nano()).format, ops::WeightFormat::bf16);
  EXPECT_EQ(gate_of(with(module, Coding::fp8_block)).format, ops::WeightFormat::fp8_block);
  EXPECT_EQ(gate_of(with(module, Coding::fp8_block_compressed)).format, ops::WeightFormat::fp8_block);
  const Matrix modelopt = gate_of(with(module, Coding::nvfp4_modelopt));
  const Matrix compressed = gate_of(with(module, Coding::nvfp4_compressed));
  EXPECT_EQ(modelopt.format, ops::WeightFormat::nvfp4);
  EXPECT_EQ(compressed.format, ops::WeightFormat::nvfp4);
  EXPECT_NEAR(modelopt.outer_scale, compressed.outer_scale, 1e-6f * modelopt.outer_scale) << "stored as its reciprocal";
  EXPECT_FALSE(modelopt.high_nibble_first);
  EXPECT_TRUE(gate_of(with(module, Coding::nvfp4_modelopt), {quant::NibbleOrder::high_first}).high_nibble_first);
  for (int bits = 1; bits <= 8; ++bits) {
    const Matrix exl3 = gate_of(with(module, Coding::exl3, {bits, quant::Exl3Codebook::mul1}));
    EXPECT_EQ(exl3.format, ops::WeightFormat::exl3);
    EXPECT_EQ(exl3.exl3.bits, bits);
    EXPECT_EQ(exl3.exl3.codebook, quant::Exl3Codebook::mul1);
    EXPECT_EQ(exl3.exl3.tile_stride, 512 / 16);
    EXPECT_EQ(exl3.out_features, 512);
    EXPECT_EQ(exl3.in_features, 256);
  }
  EXPECT_EQ(gate_of(with(module, Coding::exl3, {4, quant::Exl3Codebook::mcg, true})).exl3.codebook,
            quant::Exl3Codebook::mcg);
  const Matrix legacy = gate_of(with(module, Coding::exl3, {2, quant::Exl3Codebook::three_inst, false, true}));
  EXPECT_EQ(legacy.exl3.codebook, quant::Exl3Codebook::three_inst);
  EXPECT_TRUE(legacy.exl3.suh_is_signs && legacy.exl3.svh_is_signs);
}

TEST_F(CodedLoader, GateAndUpKeepTheirOwnGlobalScales) {
  std::vector<StoredTensor> tensors = with(expert + "gate_proj", Coding::nvfp4_modelopt);
  const std::string up = expert + "up_proj.weight";
  testing::CodedTensors other;
  testing::Coder().code(named(tensors, up), Coding::nvfp4_compressed, {}, other);
  remove(tensors, up);
  tensors.insert(tensors.end(), other.coded.begin(), other.coded.end());
  set(named(tensors, expert + "gate_proj.weight_scale_2"), 0, 0.5f);
  set(named(tensors, expert + "up_proj.weight_global_scale"), 0, 8.0f);
  const Checkpoint checkpoint = written(tensors);
  const MlpWeights mlp = load_text_weights(checkpoint, shape()).layers[1].moe->experts[3];
  EXPECT_EQ(mlp.gate_proj.outer_scale, 0.5f);
  EXPECT_EQ(mlp.up_proj.outer_scale, 0.125f);
}

TEST_F(CodedLoader, ScalesMayLieInAnotherShard) {
  for (const auto& [coding, moved] : {std::pair{Coding::nvfp4_modelopt, ".weight_scale_2"},
                                      {Coding::nvfp4_compressed, ".weight_scale"},
                                      {Coding::fp8_block, ".weight_scale_inv"},
                                      {Coding::exl3, ".svh"}}) {
    const testing::TemporaryFolder folder;
    std::vector<StoredTensor> first = with(module, coding), second = {named(first, module + moved)};
    remove(first, module + moved);
    std::string map;
    for (const auto& [file, tensors] : {std::pair{"a.safetensors", &first}, {"b.safetensors", &second}}) {
      testing::write_file(folder.path() / file, testing::safetensors_bytes(*tensors));
      for (const StoredTensor& tensor : *tensors)
        map += fmt::format(R"({}"{}":"{}")", map.empty() ? "" : ",", tensor.name, file);
    }
    testing::write_file(folder.path() / "model.safetensors.index.json", R"({"weight_map":{)" + map + "}}");
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    EXPECT_NE(load_text_weights(checkpoint, shape()).layers[0].mlp->gate_proj.format, ops::WeightFormat::bf16);
  }
}

// The scales of an FP8 module in two bytes each, truncated to BF16.
void shorten_scales(std::vector<StoredTensor>& tensors, DType dtype) {
  StoredTensor& scales = named(tensors, module + ".weight_scale_inv");
  const std::vector<float> values = testing::values_of(scales);
  std::vector<uint16_t> halves;
  for (const float value : values)
    halves.push_back(dtype == DType::f16 ? quant::float_to_half(value)
                                         : static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
  scales.dtype = dtype;
  scales.bytes = testing::raw(halves);
}

TEST_F(CodedLoader, Fp8ScalesInTwoBytes) {
  const std::vector<StoredTensor> stored = with(module, Coding::fp8_block);
  const Matrix exact = gate_of(stored);
  const std::vector<float> values = ops::decode(exact);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    std::vector<StoredTensor> tensors = stored;
    shorten_scales(tensors, dtype);
    const Matrix gate = gate_of(tensors);
    EXPECT_EQ(gate.scale_format, dtype == DType::f16 ? quant::Fp8ScaleFormat::f16 : quant::Fp8ScaleFormat::bf16);
    const std::vector<float> found = ops::decode(gate);
    for (size_t i = 0; i < values.size(); i += 97)
      ASSERT_NEAR(found[i], values[i], std::abs(values[i]) / 128) << "weight " << i;
  }
}

TEST_F(CodedLoader, Fp8Refusals) {
  constexpr Coding fp8 = Coding::fp8_block;
  const std::string scales = module + ".weight_scale_inv";
  expect_parts(damaged(fp8, [&](auto& t) { remove(t, scales); }), {scales, "missing"});
  expect_parts(damaged(fp8, [&](auto& t) { set(named(t, scales), 3, std::nanf("")); }),
               {"model.safetensors", scales, "nan at element 3"});
  expect_parts(damaged(fp8, [&](auto& t) { set(named(t, scales), 0, -1.0f); }), {scales, "-1 at element 0"});
  expect_parts(damaged(fp8,
                       [&](auto& t) {
                         shorten_scales(t, DType::bf16);
                         set(named(t, scales), 7, uint16_t{0x7f80});
                       }),
               {scales, "inf at element 7"});
  expect_parts(damaged(fp8, [&](auto& t) { named(t, scales).shape = {2, 4}; }), {scales, "[2, 4]", "[4, 2]"});
  expect_parts(damaged(fp8, [&](auto& t) { named(t, scales).dtype = DType::i32; }), {scales, "I32", "F32 or BF16"});
  expect_parts(damaged(fp8,
                       [&](auto& t) {
                         StoredTensor second = named(t, scales);
                         second.name = module + ".weight_scale";
                         t.push_back(second);
                       }),
               {module + ".weight_scale", "beside", "weight_scale_inv"});
  // Codes of one format with names of another.
  expect_parts(damaged(fp8, [&](auto& t) { named(t, scales).name = module + ".weight_scale_2"; }),
               {module, "weight_scale"});
  expect_parts(damaged(Coding::nvfp4_modelopt,
                       [&](auto& t) {
                         t.push_back({scales, DType::f32, {4, 2}, std::string(32, '\0')});
                       }),
               {scales, "ModelOpt"});
  expect_parts(damaged(Coding::exl3,
                       [&](auto& t) {
                         t.push_back({scales, DType::f32, {4, 2}, std::string(32, '\0')});
                       }),
               {scales, "beside an EXL3 trellis"});
}

TEST_F(CodedLoader, Nvfp4Refusals) {
  constexpr Coding modelopt = Coding::nvfp4_modelopt, compressed = Coding::nvfp4_compressed;
  expect_parts(damaged(modelopt, [](auto& t) { remove(t, module + ".weight_scale_2"); }),
               {module + ".weight_scale_2", "missing"});
  expect_parts(damaged(modelopt, [](auto& t) { remove(t, module + ".weight_scale"); }),
               {module + ".weight_scale", "missing"});
  expect_parts(damaged(modelopt, [](auto& t) { remove(t, module + ".weight"); }), {module + ".weight", "missing"});
  expect_parts(damaged(compressed, [](auto& t) { remove(t, module + ".weight_global_scale"); }),
               {module + ".weight_global_scale", "missing"});
  expect_parts(
      damaged(compressed, [](auto& t) { named(t, module + ".weight_global_scale").name = module + ".weight_scale_2"; }),
      {module + ".weight_scale_2", "compressed-tensors"});
  expect_parts(damaged(modelopt, [](auto& t) { shorten(named(t, module + ".weight"), 64); }),
               {module + ".weight", "[512, 64]", "[512, 128]"});
  expect_parts(damaged(modelopt, [](auto& t) { shorten(named(t, module + ".weight_scale"), 8); }),
               {module + ".weight_scale", "[512, 8]", "[512, 16]"});
  expect_parts(damaged(modelopt, [](auto& t) { named(t, module + ".weight_scale").dtype = DType::u8; }),
               {module + ".weight_scale", "U8", "F8_E4M3"});
  expect_parts(damaged(modelopt, [](auto& t) { named(t, module + ".weight_scale").bytes[77] = '\x7f'; }),
               {module + ".weight_scale", "NaN", "77"});
  expect_parts(damaged(compressed, [](auto& t) { set(named(t, module + ".weight_global_scale"), 0, 0.0f); }),
               {module + ".weight_global_scale", "above 0"});
  expect_parts(damaged(modelopt,
                       [](auto& t) {
                         t.push_back({module + ".bias", DType::bf16, {512}, std::string(1024, '\0')});
                       }),
               {module + ".bias", "none"});
}

TEST_F(CodedLoader, Exl3Refusals) {
  constexpr Coding exl3 = Coding::exl3;
  const auto add = [](const char* name, DType dtype, const std::vector<int64_t>& dims, size_t bytes) {
    return [=](std::vector<StoredTensor>& t) {
      t.push_back({module + "." + name, dtype, dims, std::string(bytes, '\0')});
    };
  };
  expect_parts(damaged(exl3, [](auto& t) { remove(t, module + ".trellis"); }), {module + ".trellis", "missing"});
  expect_parts(damaged(exl3, [](auto& t) { remove(t, module + ".suh"); }), {module + ".suh", "missing"});
  expect_parts(damaged(exl3, [](auto& t) { shorten(named(t, module + ".trellis"), 63); }),
               {module + ".trellis", "[16, 32, 63]", "16·b"});
  expect_parts(damaged(exl3, [](auto& t) { shorten(named(t, module + ".trellis"), 40); }),
               {module + ".trellis", "half-integer"});
  expect_parts(damaged(exl3,
                       [](auto& t) {
                         named(t, module + ".trellis").shape = {32, 16, 64};
                       }),
               {module + ".trellis", "[32, 16, 64]", "[16, 32,"});
  expect_parts(damaged(exl3, [](auto& t) { named(t, module + ".suh").dtype = DType::bf16; }),
               {module + ".suh", "BF16", "F16"});
  expect_parts(damaged(exl3, [](auto& t) { shorten(named(t, module + ".svh"), 256); }),
               {module + ".svh", "[256]", "[512]"});
  expect_parts(damaged(exl3, [](auto& t) { set(named(t, module + ".suh"), 5, uint16_t{0x7e00}); }),
               {module + ".suh", "at 5", "finite"});
  expect_parts(damaged(exl3, [](auto& t) { set(named(t, module + ".mcg"), 0, 7u); }),
               {module + ".mcg", "value 7", "3417055213"});
  expect_parts(damaged(exl3,
                       [](auto& t) {
                         t.push_back({module + ".mul1", DType::i32, {}, named(t, module + ".mcg").bytes});
                       }),
               {module + ".mul1"});
  expect_parts(damaged(exl3, add("scale", DType::f16, {1}, 2)), {module + ".scale", "obsolete"});
  expect_parts(damaged(exl3, add("su", DType::i16, {16}, 32)), {module + ".su", "both"});
  expect_parts(damaged(exl3, add("weight", DType::bf16, {512, 256}, 512 * 256 * 2)), {module + ".weight", "beside"});
  expect_parts(damaged(exl3, add("bias", DType::f16, {512}, 1024)), {module + ".bias", "none"});
}

TEST_F(CodedLoader, MatricesCutByRankBeforeEncodingAreRefused) {
  expect_parts(damaged(Coding::exl3,
                       [](auto& t) {
                         for (const char* name : {"trellis", "suh", "svh", "mcg"})
                           named(t, module + "." + name).name = module + ".rank0." + name;
                       }),
               {module + ".rank0.", "unknown"});
}

TEST_F(CodedLoader, SomeWeightsMustBePlain) {
  const std::string text = "model.language_model.";
  for (const std::string& name : {text + "embed_tokens", text + "layers.1.mlp.gate"}) {
    std::vector<StoredTensor> tensors = nano();
    testing::CodedTensors coded;
    testing::Coder().code(named(tensors, name + ".weight"), Coding::nvfp4_modelopt, {}, coded);
    remove(tensors, name + ".weight");
    tensors.insert(tensors.end(), coded.coded.begin(), coded.coded.end());
    expect_parts(refused(tensors), {name, "NVFP4", "BF16 or F32"});
  }
}

// b_proj has one output a head: whole it is padded to 128, cut for two ranks it would be inside a transform.
TEST_F(CodedLoader, PaddedMatricesLoadButAreNotCut) {
  const std::string name = layer + "self_attn.b_proj";
  std::vector<StoredTensor> tensors = nano();
  testing::CodedTensors coded;
  testing::Coder().code(named(tensors, name + ".weight"), Coding::exl3, {}, coded);
  remove(tensors, name + ".weight");
  tensors.insert(tensors.end(), coded.coded.begin(), coded.coded.end());
  const Checkpoint checkpoint = written(tensors);
  const TextWeights weights = load_text_weights(checkpoint, shape());
  EXPECT_EQ(weights.layers[0].kda->b_proj.out_features, 2);
  EXPECT_EQ(weights.layers[0].kda->b_proj.exl3.tile_stride, 8);
  expect_parts(error_of([&] { split(weights, shape(), 1, 2); }), {"b_proj.weight", "1 to 2", "128"});
}

TEST_F(CodedLoader, LeafBordersInsideATransformAreRefused) {
  const auto path = testing::source_dir() / "tests/golden/tinyA";  // 3 heads of 32: leaf 0 has 64 of 96 inputs
  std::vector<StoredTensor> tensors = testing::read_tensors(Checkpoint::open(path));
  const std::string name = layer + "self_attn.o_proj";
  testing::CodedTensors coded;
  testing::Coder().code(named(tensors, name + ".weight"), Coding::exl3, {}, coded);
  remove(tensors, name + ".weight");
  tensors.insert(tensors.end(), coded.coded.begin(), coded.coded.end());
  const Checkpoint checkpoint = written(tensors);
  expect_parts(error_of([&] { load_text_weights(checkpoint, read_shape(path)); }),
               {name, "input 64 of 96", "multiple of 128"});
}

TEST_F(CodedLoader, StatedWidthsMustAgree) {
  const std::string name = expert + "up_proj";
  std::vector<StoredTensor> tensors = with(name, Coding::exl3, {3});
  const auto loads = [&](const std::string& config, const std::string& storage) {
    testing::write_file(folder_.path() / "config.json", config);
    testing::write_file(folder_.path() / "quantization_config.json", storage);
    const Checkpoint checkpoint = written(tensors);
    load_text_weights(checkpoint, shape());
  };
  const auto stored = [&](const std::string& facts) {
    return R"({"quant_method": "exl3", "tensor_storage": {")" + name + R"(": )" + facts + "}}";
  };
  const std::string agreed = R"({"quantization_config": {"quant_method": "exl3", "layer_bits": {"1": 3, "2": 5}}})";
  EXPECT_NO_THROW(loads("{}", "{}"));
  EXPECT_NO_THROW(loads(agreed, stored(R"({"bits_per_weight": 3.01, "quant_format": "exl3"})")));
  expect_parts(error_of([&] { loads(R"({"quantization_config": {"layer_bits": {"1": 4}}})", "{}"); }),
               {"config.json: quantization_config.layer_bits.1", "4", "3, the width"});
  expect_parts(error_of([&] { loads("{}", stored(R"({"bits_per_weight": 4})")); }),
               {"quantization_config.json: tensor_storage." + name, "4", "3"});
  expect_parts(error_of([&] {
                 loads("{}", stored(R"({"stored_tensors": {")" + name + R"(.trellis": {"shape": [16, 8, 64]}}})"));
               }),
               {name + ".stored_tensors", "4", "3"});
  expect_parts(error_of([&] { loads("{}", R"({"quant_method": "exl3", "tile_order": "sm70_colmajor"})"); }),
               {"quantization_config.json", "tile_order", "sm70_colmajor"});
  expect_parts(error_of([&] { loads("{}", "[]"); }), {"quantization_config.json", "a JSON object"});
}

TEST(CodedSettings, UnknownOnesAreRefused) {
  const auto parse = [](const std::string& settings) {
    std::string config = testing::read_file(testing::source_dir() / "models/nano/config.json");
    config.insert(config.find('{') + 1, R"("quantization_config": )" + settings + ",");
    parse_shape(config);
  };
  const auto refusal = [&](const std::string& settings) { return error_of([&] { parse(settings); }); };
  for (
      const char* known :
      {R"({"quant_method": "exl3", "version": "0.0.43", "bits": 4, "head_bits": 16, "codebook": "mcg",
            "scope": "glm53_routed_experts_only", "non_routed_dtype_policy": "official_source_native",
            "serving_reader_qualified": false})",
       R"({"quant_method": "exl3", "bits": 4.05, "codebook": "mul1", "out_scales": "always"})",
       R"({"quant_method": "exl3", "bits": "mixed_k34_per_tensor"})",
       R"({"quant_method": "exl3", "r7_routed_experts": {"schema": "r7-complete-v2-checkpoint-v1", "codebook": "mcg"}})",
       R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})",
       R"({"quant_method": "compressed-tensors", "format": "mixed-precision"})",
       R"({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})"})
    EXPECT_NO_THROW(parse(known)) << known;
  expect_parts(refusal(R"({"quant_method": "awq"})"), {"quantization_config.quant_method", "awq", "exl3"});
  expect_parts(refusal(R"({"quant_method": "exl3", "codebook": "4inst"})"), {"codebook", "4inst", "mcg"});
  expect_parts(refusal(R"({"quant_method": "exl3", "tile_order": "sm70_colmajor"})"), {"tile_order", "sm70_colmajor"});
  expect_parts(refusal(R"({"quant_method": "exl3", "scope": "everything"})"), {"scope", "everything"});
  expect_parts(refusal(R"({"quant_method": "exl3", "hybrid_tr3_tail": {"tp": 2}})"), {"hybrid_tr3_tail"});
  expect_parts(refusal(R"({"r7_routed_experts": {"schema": "r8"}})"), {"r7_routed_experts.schema", "r8"});
  expect_parts(refusal(R"({"quant_method": 5})"), {"quant_method", "found 5"});
}

}  // namespace
}  // namespace tandem::model::coded_weights_test
