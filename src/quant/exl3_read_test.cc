// What read_exl3 takes and what it refuses (spec/quantization.md 1.1, 1.2, 7).
#include <functional>

#include "base/error.h"
#include "quant/exl3_matrix.h"
#include "quant/half.h"
#include "quant/test_exl3.h"

namespace tandem::quant::exl3_read_test {
namespace {

// The tensors of a sound layer of 256 inputs and 128 outputs, 4 bits, mcg; tests spoil them.
struct Layer {
  StoredExl3 stored{256, 128, 4};
  uint32_t mcg = mcg_multiplier, mul1 = mul1_multiplier;
  std::vector<uint16_t> legacy = std::vector<uint16_t>(16);
  std::vector<TensorFacts> tensors;

  Layer() {
    tensors = {{"trellis", "I16", {16, 8, 64}, StoredExl3::bytes(stored.trellis)},
               {"suh", "F16", {256}, StoredExl3::bytes(stored.suh)},
               {"svh", "F16", {128}, StoredExl3::bytes(stored.svh)},
               {"mcg", "I32", {}, std::as_bytes(std::span<const uint32_t>(&mcg, 1))}};
  }
  TensorFacts& operator[](std::string_view name) {
    for (TensorFacts& tensor : tensors)
      if (tensor.name == name) return tensor;
    throw std::logic_error("no such tensor");
  }
  void remove(std::string_view name) {
    std::erase_if(tensors, [name](const TensorFacts& tensor) { return tensor.name == name; });
  }
  void add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
           std::span<const std::byte> data) {
    tensors.push_back({name, dtype, std::move(shape), data});
  }
  Exl3Matrix read(std::vector<std::string>* warnings = nullptr, int64_t in = 256, int64_t out = 128) const {
    return read_exl3("model.layers.3.mlp.experts.7.up_proj", tensors, in, out, warnings);
  }
};

// The message of the refusal, without the prefix that it must have.
std::string refusal(const Layer& layer, int64_t in = 256, int64_t out = 128) {
  try {
    layer.read(nullptr, in, out);
  } catch (const Error& error) {
    const std::string prefix = "model.layers.3.mlp.experts.7.up_proj.", text = error.what();
    EXPECT_EQ(error.code(), ErrorCode::bad_file);
    EXPECT_EQ(text.rfind(prefix, 0), 0u) << text;
    return text.substr(prefix.size());
  }
  return "accepted";
}

void expect_refused(const std::string& name, const std::string& found, const std::function<void(Layer&)>& spoil) {
  Layer layer;
  spoil(layer);
  const std::string text = refusal(layer);
  EXPECT_EQ(text.rfind(name + ":", 0), 0u) << text;
  EXPECT_NE(text.find(found), std::string::npos) << text << "\nexpected to say: " << found;
}

TEST(ReadExl3, ASoundLayer) {
  Layer layer;
  std::vector<std::string> warnings;
  const Exl3Matrix m = layer.read(&warnings);
  EXPECT_EQ(m.bits, 4);
  EXPECT_EQ(m.codebook, Exl3Codebook::mcg);
  EXPECT_EQ(m.in_features, 256);
  EXPECT_EQ(m.out_features, 128);
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(exl3_dense(m), exl3_dense(layer.stored.matrix(Exl3Codebook::mcg)));
}

TEST(ReadExl3, MarkersChooseTheCodebook) {
  Layer layer;
  layer["mcg"].shape = {1};  // both forms of a scalar are in use
  layer["mcg"].dtype = "U32";
  layer["trellis"].dtype = "U16";
  EXPECT_EQ(layer.read().codebook, Exl3Codebook::mcg);
  layer.remove("mcg");
  EXPECT_EQ(layer.read().codebook, Exl3Codebook::three_inst);
  layer.add("mul1", "I32", {}, std::as_bytes(std::span<const uint32_t>(&layer.mul1, 1)));
  EXPECT_EQ(layer.read().codebook, Exl3Codebook::mul1);
}

TEST(ReadExl3, EveryWidth) {
  for (int bits = 1; bits <= 8; ++bits) {
    Layer layer;
    layer.stored = StoredExl3(256, 128, bits);
    layer["trellis"] = {"trellis", "I16", {16, 8, 16 * bits}, StoredExl3::bytes(layer.stored.trellis)};
    layer["suh"].data = StoredExl3::bytes(layer.stored.suh);
    layer["svh"].data = StoredExl3::bytes(layer.stored.svh);
    EXPECT_EQ(layer.read().bits, bits);
  }
}

TEST(ReadExl3, PaddedLayersKeepTheirStoredSize) {
  const Layer layer;
  const Exl3Matrix m = layer.read(nullptr, 200, 1);
  EXPECT_EQ(m.in_features, 256);
  EXPECT_EQ(m.out_features, 128);
  EXPECT_NE(refusal(layer, 128, 128), "accepted");  // more padding than to the next multiple of 128
  EXPECT_NE(refusal(layer, 257, 128), "accepted");
}

TEST(ReadExl3, LegacySignsForEitherSide) {
  Layer layer;
  layer.remove("suh");
  layer.add("su", "I16", {16}, StoredExl3::bytes(layer.legacy));
  EXPECT_EQ(exl3_input_scales(layer.read()), std::vector<float>(256, 1.0f));
}

TEST(ReadExl3, OddScalesAreWarnings) {
  Layer layer;
  layer.stored.suh[3] = 0;
  layer.stored.svh[1] = 0;  // a dead output: nothing odd
  layer.stored.svh[2] = 1;  // 6e-8
  std::vector<std::string> warnings;
  layer.read(&warnings);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[0].find("suh: 1 inputs have scale 0"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[1].find("svh: scales from"), std::string::npos) << warnings[1];
}

TEST(ReadExl3, RefusesATrellisThatIsNotOne) {
  expect_refused("trellis", "missing", [](Layer& l) { l.remove("trellis"); });
  expect_refused("trellis", "dtype F16; expected I16 or U16", [](Layer& l) { l["trellis"].dtype = "F16"; });
  expect_refused("trellis", "shape [16, 8]", [](Layer& l) { l["trellis"].shape = {16, 8}; });
  expect_refused("trellis", "shape [8, 16, 64]; expected [16, 8, 16·b]", [](Layer& l) {
    l["trellis"].shape = {8, 16, 64};
  });
  for (const int64_t units : {int64_t{0}, int64_t{-16}, int64_t{8}, int64_t{65}, int64_t{144}, INT64_MAX, INT64_MIN})
    expect_refused("trellis", "b = 1 to 8", [units](Layer& l) { l["trellis"].shape[2] = units; });
  expect_refused("trellis", "16384 bytes of data; expected 20480", [](Layer& l) { l["trellis"].shape[2] = 80; });
  expect_refused("trellis", "bytes of data",
                 [](Layer& l) { l["trellis"].data = l["trellis"].data.first(l["trellis"].data.size() - 1); });
  expect_refused("trellis", "two tensors", [](Layer& l) { l.tensors.push_back(l["trellis"]); });
}

TEST(ReadExl3, RefusesHalfIntegerWidthsWithTheReason) {
  for (const int64_t units : {24, 40, 56})
    expect_refused("trellis", "half-integer width " + std::to_string(units / 16) + ".5",
                   [units](Layer& l) { l["trellis"].shape[2] = units; });
}

TEST(ReadExl3, RefusesHugeLayers) {
  const Layer layer;
  for (const int64_t size : {int64_t{0}, int64_t{-128}, (int64_t{1} << 24) + 1, INT64_MAX, INT64_MIN}) {
    EXPECT_NE(refusal(layer, size, 128).find("expected 1 to 16777216"), std::string::npos);
    EXPECT_NE(refusal(layer, 256, size).find("expected 1 to 16777216"), std::string::npos);
  }
  // The largest sizes that are looked at: a shape that agrees, and no data for it.
  Layer huge;
  huge["trellis"].shape = {1 << 20, 1 << 20, 128};
  EXPECT_NE(refusal(huge, 1 << 24, 1 << 24).find("bytes of data"), std::string::npos);
}

TEST(ReadExl3, RefusesMarkersThatLie) {
  expect_refused("mul1", "both markers",
                 [](Layer& l) { l.add("mul1", "I32", {1}, std::as_bytes(std::span<const uint32_t>(&l.mul1, 1))); });
  expect_refused("mcg", "value 1; expected 3417055213", [](Layer& l) { l.mcg = 1; });
  expect_refused("mcg", "dtype F32", [](Layer& l) { l["mcg"].dtype = "F32"; });
  expect_refused("mcg", "shape [2]", [](Layer& l) { l["mcg"].shape = {2}; });
  expect_refused("mcg", "shape [1, 1]", [](Layer& l) { l["mcg"].shape = {1, 1}; });
  expect_refused("mcg", "0 bytes", [](Layer& l) { l["mcg"].data = {}; });
}

TEST(ReadExl3, RefusesVectorsThatCannotBe) {
  expect_refused("suh", "missing", [](Layer& l) { l.remove("suh"); });
  expect_refused("svh", "missing", [](Layer& l) { l.remove("svh"); });
  expect_refused("suh", "dtype BF16; expected F16", [](Layer& l) { l["suh"].dtype = "BF16"; });
  expect_refused("svh", "shape [256]; expected [128]", [](Layer& l) { l["svh"].shape = {256}; });
  expect_refused("svh", "shape [128, 1]", [](Layer& l) { l["svh"].shape = {128, 1}; });
  expect_refused("suh", "bytes of data", [](Layer& l) { l["suh"].data = l["suh"].data.first(2); });
  expect_refused("suh", "nan at 9", [](Layer& l) { l.stored.suh[9] = 0x7e00; });
  expect_refused("svh", "inf at 127", [](Layer& l) { l.stored.svh[127] = 0x7c00; });
  expect_refused("svh", "-65504", [](Layer& l) { l.stored.svh[0] = 0xfbff; });
  expect_refused("su", "both suh and the legacy signs su",
                 [](Layer& l) { l.add("su", "I16", {16}, StoredExl3::bytes(l.legacy)); });
  expect_refused("su", "shape [16, 1]; expected [16]", [](Layer& l) {
    l.remove("suh");
    l.add("su", "I16", {16, 1}, StoredExl3::bytes(l.legacy));
  });
}

TEST(ReadExl3, RefusesUnknownAndObsoleteSiblings) {
  expect_refused("scale", "obsolete", [](Layer& l) { l.add("scale", "F16", {1}, {}); });
  expect_refused("rank0.trellis", "unknown", [](Layer& l) { l.add("rank0.trellis", "I16", {1}, {}); });
}

TEST(ReadExl3, SettingsThatChangeTheMeaningMustBeKnown) {
  const auto refused = [](std::string_view key, std::string_view value) {
    try {
      check_exl3_setting("config.json", key, value);
    } catch (const Error& error) {
      EXPECT_EQ(error.where(), "config.json: quantization_config." + std::string(key));
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused("quant_method", "exl3"));
  EXPECT_FALSE(refused("codebook", "mul1"));
  EXPECT_FALSE(refused("scope", "glm53_routed_experts_only"));
  EXPECT_FALSE(refused("out_scales", "anything"));  // informative
  EXPECT_TRUE(refused("quant_method", "exl2"));
  EXPECT_TRUE(refused("codebook", "MCG"));
  EXPECT_TRUE(refused("scope", "everything"));
  EXPECT_TRUE(refused("tile_order", "sm70_colmajor"));
  EXPECT_TRUE(refused("tile_order", ""));
  EXPECT_TRUE(refused("rotation_layout", "shared_h_v1"));
  EXPECT_TRUE(refused("tensor_schema", "x"));
}

TEST(ReadExl3, AStatedWidthMustBeTheStoredOne) {
  EXPECT_NO_THROW(check_exl3_stated_bits("quantization_config.json: x", 4, 4.0));
  EXPECT_THROW(check_exl3_stated_bits("quantization_config.json: x", 4, 3.0), Error);
  EXPECT_THROW(check_exl3_stated_bits("quantization_config.json: x", 4, std::nan("")), Error);
}

}  // namespace
}  // namespace tandem::quant::exl3_read_test
