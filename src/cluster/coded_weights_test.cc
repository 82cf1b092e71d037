// The whole model with coded weights: the logits of the dequantised weights within fp32 rounding, and bits that depend
// neither on how the work is cut nor on the number of ranks.
#include <cmath>

#include "cluster/test_streams.h"
#include "model/testing/coded_tensors.h"
#include "model/weights.h"
#include "ops/simd/kernels.h"

namespace tandem::cluster::coded_weights_test {
namespace {

using model::testing::Choice;
using model::testing::Coding;
using model::testing::Exl3Style;
using quant::Exl3Codebook;

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }
bool is_expert(const std::string& name) { return contains(name, ".mlp.experts."); }

struct Format {
  const char* name;
  Choice (*choose)(const std::string& tensor);
};

const Format formats[] = {
    {"FP8Blocks", [](const std::string&) { return Choice{Coding::fp8_block}; }},
    {"Nvfp4ModelOpt", [](const std::string&) { return Choice{Coding::nvfp4_modelopt}; }},
    {"Nvfp4CompressedTensors", [](const std::string&) { return Choice{Coding::nvfp4_compressed}; }},
    // The uniform layout: routed experts at 4 bits, mcg stored as [1], everything else as it was.
    {"Exl3Experts",
     [](const std::string& name) {
       return Choice{is_expert(name) ? Coding::exl3 : Coding::keep, {4, Exl3Codebook::mcg, true}};
     }},
    // A plain conversion: every linear, widths that differ by tensor, scalar markers.
    {"Exl3Everywhere",
     [](const std::string& name) {
       const int bits = contains(name, "lm_head")     ? 6
                        : contains(name, "down_proj") ? 5
                        : contains(name, "gate")      ? 3
                                                      : 2;
       return Choice{Coding::exl3, {bits, Exl3Codebook::mul1}};
     }},
    {"Mixed",
     [](const std::string& name) {
       if (contains(name, "layers.8.")) return Choice{Coding::fp8_block_compressed};
       if (is_expert(name))
         return Choice{contains(name, "up_proj") ? Coding::nvfp4_compressed : Coding::nvfp4_modelopt};
       if (contains(name, "o_proj")) return Choice{Coding::exl3, {7, Exl3Codebook::three_inst}};
       return Choice{};
     }},
};

struct Model {
  model::testing::TemporaryFolder folder;
  model::Checkpoint checkpoint;
  model::TextWeights weights;

  explicit Model(const std::vector<model::testing::StoredTensor>& tensors)
      : checkpoint(written(folder.path(), tensors)),
        weights(model::load_text_weights(checkpoint, loaded("nano").shape)) {}
  static model::Checkpoint written(const std::filesystem::path& path,
                                   const std::vector<model::testing::StoredTensor>& tensors) {
    model::testing::write_file(path / "model.safetensors", model::testing::safetensors_bytes(tensors));
    return model::Checkpoint::open(path);
  }
};

class CodedWeights : public ::testing::TestWithParam<Format> {};

TEST_P(CodedWeights, ForwardPassAndRanks) {
  const model::Shape& shape = loaded("nano").shape;
  const auto tensors =
      model::testing::coded_tensors(model::testing::read_tensors(loaded("nano").checkpoint), GetParam().choose);
  const Model coded(tensors.coded), plain(tensors.plain);
  Ids ids = ids_of("nano", "case_T40");
  ids.resize(24);

  const Trace expected = without_group(shape, coded.weights, ids, {});

  const Trace reference = without_group(shape, plain.weights, ids, {});
  ASSERT_EQ(expected.logits.size(), reference.logits.size());
  double difference = 0, size = 0, original = 0;
  const Trace native = without_group("nano", ids, {});
  for (size_t i = 0; i < expected.logits.size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(expected.logits[i]) - reference.logits[i]));
    size = std::max(size, std::abs(static_cast<double>(reference.logits[i])));
    original = std::max(original, std::abs(static_cast<double>(native.logits[i]) - reference.logits[i]));
  }
  EXPECT_LE(difference, 1e-5 * size);
  EXPECT_GT(original, 1e-3 * size) << "the coded weights are not those of the original model";

  Streams one(shape, coded.weights, one_rank, {.threads = 2}), two(shape, coded.weights, two_ranks);
  EXPECT_TRUE(same(in_chunks(one, ids, 7), expected));
  EXPECT_TRUE(same(in_chunks(two, ids, 9), expected));
  const ops::SimdLevel best = ops::kernels().level;
  ops::use_simd_level(ops::SimdLevel::scalar);
  Streams scalar(shape, coded.weights, one_rank);
  EXPECT_TRUE(same(in_chunks(scalar, ids, 300), expected));
  ops::use_simd_level(best);
}

INSTANTIATE_TEST_SUITE_P(Formats, CodedWeights, ::testing::ValuesIn(formats),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tandem::cluster::coded_weights_test
