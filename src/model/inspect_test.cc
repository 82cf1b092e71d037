// The report of `tandem inspect` on a bare configuration and on model folders.
#include "model/inspect.h"

#include <nlohmann/json.hpp>

#include "model/testing/checkpoint_files.h"

namespace tandem::model {
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
}  // namespace tandem::model
