// Parameter counts, cache bytes and tensor census against the published totals, and the comparison with stored tensors.
#include "model/inventory.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "model/testing/checkpoint_files.h"

namespace tandem::model::inventory_test {
namespace {

using testing::expect_parts;
using testing::StoredTensor;

Shape real_shape() { return read_shape(testing::source_dir() / "tests/golden/configs/glm-5.3-flash.json"); }

const ParameterRow& row(const std::vector<ParameterRow>& rows, Component component) {
  for (const ParameterRow& candidate : rows) {
    if (candidate.component == component) return candidate;
  }
  throw std::runtime_error(component_name(component));
}

TEST(Inventory, RealModelHasThePublishedParameters) {  // spec/model.md 1.3
  const Inventory inventory = make_inventory(real_shape());
  const struct {
    Component component;
    int64_t per_unit, units, total;
  } expected[] = {
      {Component::embedding, 634'388'480, 1, 634'388'480},
      {Component::lm_head, 634'388'480, 1, 634'388'480},
      {Component::kda, 137'732'288, 34, 4'682'897'792},
      {Component::mla, 117'442'560, 11, 1'291'868'160},
      {Component::indexer, 7'471'872, 11, 82'190'592},
      {Component::mhc, 786'486, 45, 35'391'870},
      {Component::layer_norms, 8'192, 45, 368'640},
      {Component::dense_mlp, 150'994'944, 3, 452'984'832},
      {Component::router, 1'179'936, 42, 49'557'312},
      {Component::shared_expert, 25'165'824, 42, 1'056'964'608},
      {Component::routed_experts, 25'165'824, 12'096, 304'405'807'104},
      {Component::final_norm, 4'096, 1, 4'096},
  };
  EXPECT_EQ(inventory.main_rows.size(), std::size(expected));
  for (const auto& [component, per_unit, units, total] : expected) {
    const ParameterRow& found = row(inventory.main_rows, component);
    EXPECT_EQ(found.per_unit, per_unit) << component_name(component);
    EXPECT_EQ(found.units, units) << component_name(component);
    EXPECT_EQ(found.total(), total) << component_name(component);
  }
  EXPECT_EQ(inventory.main_parameters, 313'326'811'966);
  EXPECT_EQ(inventory.mtp_parameters, 7'432'592'416);
  EXPECT_EQ(inventory.main_parameters + inventory.mtp_parameters, 320'759'404'382);
  EXPECT_EQ(inventory.active_parameters, 16'742'333'246);
}

TEST(Inventory, MtpLayerHasThePublishedParts) {  // spec/model.md 1.3, last rows
  const std::vector<ParameterRow> rows = make_inventory(real_shape()).mtp_rows;
  EXPECT_EQ(row(rows, Component::mla).total() + row(rows, Component::indexer).total(), 124'914'432);
  EXPECT_EQ(row(rows, Component::routed_experts).total(), 7'247'757'312);
  EXPECT_EQ(row(rows, Component::routed_experts).units, 288);
  EXPECT_EQ(row(rows, Component::shared_expert).total(), 25'165'824);
  EXPECT_EQ(row(rows, Component::router).total(), 1'179'936);
  EXPECT_EQ(row(rows, Component::mtp_eh_proj).total(), 33'554'432);
  EXPECT_EQ(row(rows, Component::mtp_norms).total() + row(rows, Component::layer_norms).total(), 20'480);
}

// The tensors of the FP8 release with a scale of their own (spec/model.md 8.2).
bool is_quantised(const WeightSpec& spec) {
  const auto ends = [&](const char* end) { return spec.name.ends_with(end); };
  switch (spec.component) {
    case Component::mla:
      return ends("q_a_proj.weight") || ends("q_b_proj.weight") || ends("mqa.weight") || ends("o_proj.weight");
    case Component::dense_mlp:
    case Component::shared_expert:
    case Component::routed_experts: return true;
    default: return false;
  }
}

TEST(Inventory, CensusOfTheFp8Release) {  // spec/model.md 8.1: 74,001 + 1,760 tensors
  const Inventory inventory = make_inventory(real_shape());
  const auto stored = [](const std::vector<WeightSpec>& specs) {
    return static_cast<int64_t>(specs.size()) + std::count_if(specs.begin(), specs.end(), is_quantised);
  };
  EXPECT_EQ(stored(inventory.main), 74'001);
  EXPECT_EQ(stored(inventory.mtp), 1'760);
}

TEST(Inventory, NamesAndShapesOfTheRealModel) {  // spec/model.md 8.1
  const Inventory inventory = make_inventory(real_shape());
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto* list : {&inventory.main, &inventory.mtp}) {
    for (const WeightSpec& spec : *list) EXPECT_TRUE(shapes.emplace(spec.name, spec.shape).second) << spec.name;
  }
  using Dims = std::vector<int64_t>;
  const std::pair<const char*, Dims> expected[] = {
      {"layers.44.hc_ffn_fn", {24, 16384}},
      {"layers.0.self_attn.q_conv1d.weight", {8192, 1, 4}},
      {"layers.0.self_attn.dt_bias", {8192}},
      {"layers.3.self_attn.kv_b_proj.weight", {32768, 512}},
      {"layers.3.self_attn.q_b_proj.weight", {16384, 1536}},
      {"layers.3.self_attn.indexer.index_kpool_compress_gate", {128, 4096}},
      {"layers.3.self_attn.indexer.index_kpool_compress_ape", {4, 128}},
      {"layers.3.mlp.experts.287.down_proj.weight", {4096, 2048}},
      {"layers.45.eh_proj.weight", {4096, 8192}},
      {"layers.45.shared_head.norm.weight", {4096}},
      {"lm_head.weight", {154880, 4096}},
  };
  for (const auto& [name, shape] : expected) EXPECT_EQ(shapes[name], shape) << name;
  EXPECT_FALSE(shapes.contains("layers.45.hc_attn_fn"));
}

TEST(Inventory, BundledModelHasItsParameters) {  // models/nano/README.md
  const auto folder = testing::source_dir() / "models/nano";
  const Shape shape = read_shape(folder);
  const Inventory inventory = make_inventory(shape);
  EXPECT_EQ(inventory.main_parameters, 12'794'868);
  EXPECT_EQ(inventory.mtp_parameters, 2'201'352);
  const Comparison comparison = compare(Checkpoint::open(folder), shape);
  EXPECT_TRUE(comparison.complete());
  EXPECT_TRUE(comparison.unknown.empty());
  EXPECT_TRUE(comparison.has_mtp);
  EXPECT_EQ(comparison.vision_parameters, 875'520);
  EXPECT_EQ(comparison.vision_tensors, 39);
  EXPECT_EQ(comparison.text_tensors, 479 - 39);
  int64_t elements = 0;
  for (const DTypeCount& count : comparison.dtypes) elements += count.elements;
  EXPECT_EQ(elements, 12'794'868 + 2'201'352 + 875'520);
}

TEST(Inventory, CacheBytesOfTheRealModel) {  // spec/model.md 1.4
  const CacheBytes cache = cache_bytes(real_shape());
  const struct {
    const char* format;
    int64_t latent;
    double index, plain, with_mtp, gib_plain, gib_mtp;
  } expected[] = {
      {"bf16 latent, bf16 keys", 1024, 64, 11'968, 13'056, 11.69, 12.75},
      {"bf16 latent, fp8 keys", 1024, 33, 11'627, 12'684, 11.35, 12.39},
      {"fp8 latent (one scale a tensor), fp8 keys", 512, 33, 5'995, 6'540, 5.85, 6.39},
      {"fp8 latent (scales of 128), fp8 keys", 528, 33, 6'171, 6'732, 6.03, 6.57},
      {"fp8 latent (one scale a row), fp8 keys", 516, 33, 6'039, 6'588, 5.90, 6.43},
      {"nvfp4 latent (padded record), fp8 keys", 304, 33, 3'707, 4'044, 3.62, 3.95},
      {"nvfp4 latent (no padding), fp8 keys", 288, 33, 3'531, 3'852, 3.45, 3.76},
      {"f32 latent, f32 keys", 2048, 128, 11 * 2176, 12 * 2176, 23.375, 25.5},
  };
  EXPECT_EQ(cache.rows.size(), std::size(expected));
  for (const auto& want : expected) {
    const auto found =
        std::find_if(cache.rows.begin(), cache.rows.end(), [&](const auto& r) { return r.format == want.format; });
    ASSERT_NE(found, cache.rows.end()) << want.format;
    EXPECT_EQ(found->latent_bytes, want.latent) << want.format;
    EXPECT_EQ(static_cast<double>(found->pool_bytes) / 4, want.index) << want.format;
    EXPECT_EQ(cache.bytes_per_token(*found, false), want.plain) << want.format;
    EXPECT_EQ(cache.bytes_per_token(*found, true), want.with_mtp) << want.format;
    EXPECT_NEAR(static_cast<double>(cache.bytes_for(*found, 1 << 20, false)) / (1 << 30), want.gib_plain, 0.0051);
    EXPECT_NEAR(static_cast<double>(cache.bytes_for(*found, 1 << 20, true)) / (1 << 30), want.gib_mtp, 0.0051);
  }
  EXPECT_EQ(cache.kda_state_bytes, 142'606'336);
  EXPECT_EQ(cache.conv_bf16_bytes, 5'013'504);
  EXPECT_EQ(cache.conv_f32_bytes, 2 * 5'013'504);
}

TEST(Inventory, ComparisonListsEveryFault) {
  const Shape shape = read_shape(testing::source_dir() / "tests/golden/tinyA");
  std::vector<StoredTensor> tensors =
      testing::read_tensors(Checkpoint::open(testing::source_dir() / "tests/golden/tinyA"));
  const std::string layer = "model.language_model.layers.0.";
  for (StoredTensor& tensor : tensors) {
    if (tensor.name == layer + "mlp.up_proj.weight") tensor.shape = {96, 160};
    if (tensor.name == layer + "mlp.gate_proj.weight") tensor.dtype = DType::f16;
    if (tensor.name == layer + "input_layernorm.weight") tensor.name = layer + "in_layernorm.weight";
  }
  std::erase_if(tensors, [&](const auto& t) { return t.name == layer + "self_attn.A_log"; });
  tensors.push_back({"model.visual.x", DType::u8, {3}, "abc"});
  const testing::TemporaryFolder folder;
  testing::write_file(folder.path() / "model.safetensors", testing::safetensors_bytes(tensors));
  const Comparison comparison = compare(Checkpoint::open(folder.path()), shape);
  EXPECT_FALSE(comparison.complete());
  EXPECT_EQ(comparison.missing,
            (std::vector<std::string>{layer + "input_layernorm.weight", layer + "self_attn.A_log"}));
  ASSERT_EQ(comparison.wrong.size(), 2u);
  expect_parts(comparison.wrong[0], {"gate_proj", "F16"});
  expect_parts(comparison.wrong[1], {"up_proj", "[96, 160]"});
  EXPECT_EQ(comparison.unknown, std::vector<std::string>{layer + "in_layernorm.weight"});
  EXPECT_EQ(comparison.vision_tensors, 1);
  EXPECT_EQ(comparison.vision_parameters, 3);
}

TEST(Inventory, AbsentMtpIsNotALongListOfMissingTensors) {
  const Shape shape = read_shape(testing::source_dir() / "tests/golden/tinyA");
  std::vector<StoredTensor> tensors =
      testing::read_tensors(Checkpoint::open(testing::source_dir() / "tests/golden/tinyA"));
  std::erase_if(tensors, [](const auto& t) { return t.name.find("layers.8.") != std::string::npos; });
  const testing::TemporaryFolder folder;
  testing::write_file(folder.path() / "model.safetensors", testing::safetensors_bytes(tensors));
  const Comparison comparison = compare(Checkpoint::open(folder.path()), shape);
  EXPECT_FALSE(comparison.has_mtp);
  EXPECT_TRUE(comparison.complete());
}

}  // namespace
}  // namespace tandem::model::inventory_test
