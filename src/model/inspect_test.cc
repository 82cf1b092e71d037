// The report of `tandem inspect` on a bare configuration and on model folders.
#include "model/inspect.h"

#include <nlohmann/json.hpp>

#include "model/testing/coded_tensors.h"

namespace tandem::model::inspect_test {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::expect_parts;

TEST(Inspect, BareConfigurationNeedsNoWeights) {
  const auto path = testing::source_dir() / "tests/golden/configs/glm-5.3-flash.json";
  const std::string text = inspect_report(path, false);
  expect_parts(text, {"313,326,811,966", "7,432,592,416", "320,759,404,382", "16,742,333,246", "304,405,807,104",
                      "KDA + MoE     31", "DSA + MoE     11", "KDA + dense    3  (0-2)", "11968", "11.69 GiB", "2051",
                      "weights: none here"});
  const json report = json::parse(inspect_report(path, true));
  EXPECT_EQ(report["schema"], "tandem.inspect/1");
  EXPECT_EQ(report["parameters"]["text_with_mtp"], 320'759'404'382);
  EXPECT_EQ(report["layers"].size(), 46u);
  EXPECT_EQ(report["layers"][3]["attention"], "dsa");
  EXPECT_EQ(report["layers"][45]["mtp"], true);
  EXPECT_TRUE(report["weights"].is_null());
}

TEST(Inspect, SchemaIsTheFirstKey) {
  const std::string text = inspect_report(testing::source_dir() / "models/nano/config.json", true);
  EXPECT_TRUE(text.starts_with("{\n  \"schema\": \"tandem.inspect/1\"")) << text.substr(0, 80);
  EXPECT_TRUE(text.ends_with("}\n"));
}

TEST(Inspect, BundledModelIsComplete) {
  const ModelReport report = inspect(testing::source_dir() / "models/nano");
  EXPECT_TRUE(report.complete());
  expect_parts(report_text(report),
               {"12,794,868", "2,201,352", "875,520", "31,747,568 bytes", "missing 0", "unknown 0"});
  const json weights = json::parse(report_json(report))["weights"];
  EXPECT_EQ(weights["complete"], true);
  EXPECT_EQ(weights["vision_parameters"], 875'520);
  EXPECT_EQ(weights["dtypes"].size(), 2u);
}

// Every component in the format that it is stored in, with the bytes of its scales.
TEST(Inspect, FormatsByComponent) {
  const auto nano = testing::source_dir() / "models/nano";
  const auto tensors = testing::coded_tensors(
      testing::read_tensors(Checkpoint::open(nano)), [](const std::string& name) -> testing::Choice {
        const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
        if (has(".mlp.experts.")) return {testing::Coding::exl3, {4, quant::Exl3Codebook::mcg, true}};
        if (has("layers.0.mlp.")) return {testing::Coding::nvfp4_compressed};
        if (has("o_proj")) return {testing::Coding::fp8_block};
        return {};
      });
  const testing::TemporaryFolder folder;
  std::filesystem::copy(nano / "config.json", folder.path());
  testing::write_file(folder.path() / "model.safetensors", testing::safetensors_bytes(tensors.coded));
  const ModelReport report = inspect(folder.path());
  EXPECT_TRUE(report.complete());
  EXPECT_TRUE(report.weights->unknown.empty());
  // 7 layers of 8 experts with 3 matrices of 128x256: trellis, two vectors in F16, the marker.
  expect_parts(report_text(report), {"routed_experts", "EXL3 4 bits mcg", "mtp routed_experts",
                                     "NVFP4 (compressed-tensors, low nibble first)", "F8_E4M3 128x128 blocks", "BF16",
                                     "share suh of gate and up in 0 of 7 layers, svh of down in 0"});
  const json weights = json::parse(report_json(report))["weights"];
  int64_t bytes = 0;
  for (const json& row : weights["formats"]) bytes += row["bytes"].get<int64_t>();
  int64_t vision = 0;
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  for (const Tensor* tensor : checkpoint.tensors())
    vision += tensor->name.find("visual.") != std::string::npos ? static_cast<int64_t>(tensor->data.size()) : 0;
  EXPECT_EQ(bytes + vision, weights["bytes"].get<int64_t>()) << "every stored byte belongs to a component";
  for (const json& row : weights["formats"]) {
    if (row["component"] != "routed_experts" || row["mtp"] == true) continue;
    EXPECT_EQ(row["weights"], 7 * 8 * 3);
    EXPECT_EQ(row["bytes"], 7 * 8 * 3 * (128 * 256 / 2 + 2 * (128 + 256) + 4));
  }
  EXPECT_LT(weights["bytes_per_token"].get<int64_t>(), bytes);
}

TEST(Inspect, FaultsAreShown) {
  const testing::TemporaryFolder folder;
  std::filesystem::copy(testing::source_dir() / "tests/golden/tinyB/config.json", folder.path());
  testing::write_file(folder.path() / "model.safetensors", testing::safetensors_bytes({{"odd", DType::u8, {1}, "x"}}));
  const ModelReport report = inspect(folder.path());
  EXPECT_FALSE(report.complete());
  const std::string text = report_text(report);
  expect_parts(text, {"missing", "model.language_model.embed_tokens.weight", "more\n", "unknown 1\n    odd\n"});
  const json weights = json::parse(report_json(report))["weights"];
  EXPECT_EQ(weights["complete"], false);
  EXPECT_EQ(weights["missing"].size(), report.inventory.main.size());
  EXPECT_EQ(weights["unknown"], json({"odd"}));
}

TEST(Inspect, DamagedFilesEndIt) {
  const testing::TemporaryFolder folder;
  expect_parts(error_of([&] { inspect(folder.path()); }), {"config.json", "does not exist"});
  std::filesystem::copy(testing::source_dir() / "tests/golden/tinyB/config.json", folder.path());
  EXPECT_FALSE(inspect(folder.path()).weights) << "a folder without weights is a bare configuration";
  testing::write_file(folder.path() / "a.safetensors", "junk");
  expect_parts(error_of([&] { inspect(folder.path()); }), {"a.safetensors", "4 bytes"});
}

}  // namespace
}  // namespace tandem::model::inspect_test
