// The manifest as text and back, and what is no manifest.
#include "eval/manifest.h"

#include "model/testing/checkpoint_files.h"

namespace tandem::eval::manifest_test {
namespace {

using model::testing::error_of;
using model::testing::expect_parts;

Manifest example() {
  Manifest manifest;
  manifest.origin.encoder = exl3_encoder_version;
  manifest.origin.settings = {{"experts", "exl3:3"}, {"dense", "fp8"},       {"head", "keep"},
                              {"seed", "7"},         {"bits_target", "3.5"}, {"layout", "exl3"},
                              {"codebook", "mcg"},   {"out_scales", "auto"}, {"scale_search", "small"},
                              {"window", "512"}};
  manifest.origin.source = {{"config.json", {12, std::string(64, '1')}}};
  manifest.origin.calibration = {{"a.jsonl", {5, std::string(64, '2')}}};
  manifest.origin.calibration_tokens = 1000;
  manifest.origin.calibration_token_sha256 = std::string(64, '3');
  EncodedTensor tensor;
  tensor.name = "model.layers.0.mlp.up_proj";
  tensor.bits = 3;
  tensor.scale = 0.9;
  tensor.relative_mse = 0.0174;
  tensor.proxy_error = 1e-3;
  tensor.calibration_rows = 999;
  tensor.fallback = true;
  manifest.tensors = {tensor};
  manifest.files = {{"model.safetensors", {100, std::string(64, '4')}}};
  return manifest;
}

// sha256sum of "abc" (FIPS 180-2, B.1).
TEST(Hash, IsSha256) {
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_NE(seed_of(1, "a"), seed_of(2, "a"));
  EXPECT_NE(seed_of(1, "a"), seed_of(1, "b"));
}

TEST(ManifestText, IsReadBack) {
  const Manifest manifest = example();
  const std::string text = manifest_text(manifest);
  const Manifest read = parse_manifest(text, "m");
  EXPECT_EQ(difference(read.origin, manifest.origin), "");
  EXPECT_EQ(read.files, manifest.files);
  ASSERT_EQ(read.tensors.size(), 1u);
  EXPECT_EQ(read.tensors[0].name, manifest.tensors[0].name);
  EXPECT_EQ(read.tensors[0].bits, 3);
  EXPECT_EQ(read.tensors[0].relative_mse, 0.0174);
  EXPECT_EQ(read.tensors[0].calibration_rows, 999);
  EXPECT_TRUE(read.tensors[0].fallback);
  EXPECT_EQ(manifest_text(read), text);
  const QuantizeOptions options = options_of(read.origin, "m");
  EXPECT_EQ(options.experts, Coding::exl3);
  EXPECT_EQ(options.exl3.expert_bits, 3);
  EXPECT_EQ(options.dense, Coding::fp8);
  EXPECT_EQ(options.exl3.bits_target, 3.5);
  EXPECT_EQ(options.exl3.codebook, quant::Exl3Codebook::mcg);
  EXPECT_EQ(options.exl3.out_scales, quant::Exl3OutScales::automatic);
  EXPECT_EQ(options.exl3.scale_search, quant::Exl3ScaleSearch::small);
  EXPECT_EQ(options.exl3.calibration.size, 512);
  EXPECT_EQ(options.exl3.seed, 7u);
}

TEST(ManifestText, EveryChangedByteIsFound) {
  const std::string text = manifest_text(example());
  for (size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 2);
    error_of([&] { parse_manifest(changed, "manifest"); });
  }
  for (const size_t size : {size_t{0}, size_t{10}, text.size() - 1})
    error_of([&] { parse_manifest(text.substr(0, size), "m"); });
  error_of([&] { parse_manifest(text + " ", "manifest"); });
}

TEST(ManifestText, NamesWhatIsWrong) {
  Manifest manifest = example();
  manifest.files = {{"../secret", {1, std::string(64, '4')}}};
  expect_parts(error_of([&] { parse_manifest(manifest_text(manifest), "m"); }),
               {"m: files", "../secret", "without a folder"});
  manifest = example();
  manifest.origin.source["config.json"].sha256 = "12";
  expect_parts(error_of([&] { parse_manifest(manifest_text(manifest), "m"); }), {"sha256", "64 hexadecimal"});
  manifest = example();
  manifest.origin.settings["codebook"] = "4inst";
  expect_parts(error_of([&] { options_of(manifest.origin, "m"); }), {"m: settings.codebook", "4inst"});
  manifest.origin.settings["codebook"] = "mcg";
  manifest.origin.settings["experts"] = "exl3:9";
  expect_parts(error_of([&] { options_of(manifest.origin, "m"); }), {"settings.experts", "exl3:9"});
  manifest.origin.settings.erase("experts");
  expect_parts(error_of([&] { options_of(manifest.origin, "m"); }), {"settings.experts", "missing"});
}

TEST(Difference, NamesTheFirst) {
  const EncodingOrigin a = example().origin;
  EncodingOrigin b = a;
  b.encoder = "other";
  EXPECT_EQ(difference(a, b), "encoder");
  b = a;
  b.settings["seed"] = "8";
  EXPECT_EQ(difference(a, b), "settings seed");
  b = a;
  b.source["more.txt"] = {1, ""};
  EXPECT_EQ(difference(a, b), "source more.txt");
  b = a;
  b.source.clear();
  EXPECT_EQ(difference(a, b), "source config.json");
  b = a;
  b.calibration["a.jsonl"].bytes = 6;
  EXPECT_EQ(difference(a, b), "calibration a.jsonl");
}

}  // namespace
}  // namespace tandem::eval::manifest_test
