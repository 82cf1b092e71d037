// Weight bytes against published sizes of GLM-5.3-Flash and against the bundled checkpoint.
#include "engine/plan_weights.h"

#include <cmath>

#include "base/error.h"
#include "model/split.h"

namespace tandem::engine {
namespace {

model::Shape flash() {
  return model::read_shape(std::string(TANDEM_SOURCE_DIR) + "/tests/golden/configs/glm-5.3-flash.json");
}
double gb(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }
double total_gb(const char* format) { return gb(weights_in_format(flash(), parse_weight_format(format)).total); }

TEST(PlanWeights, PublishedSizes) {
  EXPECT_EQ(weights_in_format(flash(), {}).parameters, 320'759'404'382);  // spec/model.md 1.3, text with MTP
  EXPECT_NEAR(total_gb("bf16"), 2 * 320.759404, 0.01);
  EXPECT_NEAR(total_gb("fp8"), 327.2, 0.1);  // spec/model.md 8.1
  // With a vision tower of 1.13 GB: spec/model.md 8.3 (197.9 GB) and spec/quantization.md 3.4 (37,152·(b·1,048,576 +
  // 12,292) + 19.9e9).
  EXPECT_NEAR(total_gb("nvfp4") + 1.13, 197.9, 0.2);
  for (const int bits : {2, 3, 4, 6, 8}) {
    const double expected = 37'152e-9 * (bits * 1'048'576.0 + 12'292) + 19.9;
    EXPECT_NEAR(total_gb(("exl3:" + std::to_string(bits)).c_str()) + 1.13, expected, 0.8) << bits;
  }
  EXPECT_NEAR(gb(weights_in_format(flash(), flat_format(0.5)).total), 160.3797022, 1e-6);
}

TEST(PlanWeights, TwoRanksShareWhatIsNotReplicated) {
  for (const char* format : {"bf16", "fp8", "nvfp4", "exl3:4"}) {
    const WeightBytes bytes = weights_in_format(flash(), parse_weight_format(format));
    EXPECT_EQ(bytes.rank[0], bytes.rank[1]) << format;  // 64 heads, 288 experts: equal halves
    const int64_t replicated = bytes.rank[0] + bytes.rank[1] - bytes.total;
    EXPECT_GT(replicated, 0);
    EXPECT_LT(gb(replicated), 0.8) << format;  // norms, mHC, router, low-rank projections, indexer, eh_proj
    EXPECT_EQ(bytes.of_rank(0, 1), bytes.total);
    EXPECT_EQ(bytes.of_rank(1, 2), bytes.rank[1]);
  }
}

TEST(PlanWeights, OddUnitsMakeTheFirstRankLarger) {
  model::Shape shape = flash();
  shape.n_routed_experts = 5;
  const WeightBytes bytes = weights_in_format(shape, {});
  const int64_t expert = 3 * shape.hidden_size * shape.moe_intermediate_size * 2;
  EXPECT_EQ(bytes.rank[0] - bytes.rank[1], 43 * expert);
}

// The ranks' shares are what model::split() hands out.
TEST(PlanWeights, TheBundledCheckpoint) {
  const std::string folder = std::string(TANDEM_SOURCE_DIR) + "/models/nano";
  const model::Shape shape = model::read_shape(folder);
  const model::Checkpoint checkpoint = model::Checkpoint::open(folder);
  const WeightBytes bytes = weights_of_checkpoint(checkpoint, shape);
  int64_t stored = 0;
  for (const model::Tensor* tensor : checkpoint.tensors())
    if (tensor->name.find("visual.") == std::string::npos) stored += static_cast<int64_t>(tensor->data.size());
  EXPECT_EQ(bytes.total, stored);
  const model::TextWeights weights = model::load_text_weights(checkpoint, shape);
  for (const int rank : {0, 1}) {
    const model::TextWeights mine = model::split(weights, shape, rank, 2);
    int64_t matrices = 0;
    const auto add = [&](const model::Matrix& m) { matrices += m.out_features * m.in_features; };
    for (const model::LayerWeights& layer : mine.layers) {
      if (!layer.moe) continue;
      for (const model::MlpWeights& expert : layer.moe->experts) {
        add(expert.gate_proj);
        add(expert.up_proj);
        add(expert.down_proj);
      }
    }
    EXPECT_EQ(matrices, 7 * 4 * 3 * 256 * 128) << rank;  // four of eight experts in seven layers
    EXPECT_LT(bytes.rank[static_cast<size_t>(rank)], bytes.total * 6 / 10);
  }
  EXPECT_GE(bytes.rank[0] + bytes.rank[1], bytes.total);
}

TEST(PlanWeights, AMissingTensorIsNamed) {
  const std::string folder = std::string(TANDEM_SOURCE_DIR) + "/models/nano";
  model::Shape shape = model::read_shape(folder);
  const model::Checkpoint checkpoint = model::Checkpoint::open(folder);
  shape.n_routed_experts += 1;
  try {
    weights_of_checkpoint(checkpoint, shape);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_file);
    EXPECT_NE(error.where().find("experts.8."), std::string::npos) << error.what();
  }
}

TEST(PlanWeights, FormatsByName) {
  EXPECT_EQ(name_of(parse_weight_format("exl3:3.5")), "exl3:3.5");
  for (const char* bad : {"", "int4", "exl3", "exl3:", "exl3:0", "exl3:9", "exl3:4x", "exl3:nan", "exl3:-4", "BF16"})
    EXPECT_THROW(parse_weight_format(bad), Error) << bad;
  for (const double bad : {0.0, -1.0, 9.0, std::nan("")}) EXPECT_THROW(flat_format(bad), Error) << bad;
}

TEST(PlanWeights, FormatsByConfig) {
  const auto name = [](const char* json) { return name_of(format_of_config(json, "config.json")); };
  EXPECT_EQ(name("{}"), "bf16");
  EXPECT_EQ(name(R"({"quantization_config": {"quant_method": "fp8"}})"), "fp8");
  EXPECT_EQ(name(R"({"quantization_config": {"quant_method": "exl3", "bits": 4.0}})"), "exl3:4");
  for (const char* bad :
       {R"({"quantization_config": {}})", R"({"quantization_config": {"quant_method": "awq"}})",
        R"({"quantization_config": {"quant_method": "exl3"}})",
        R"({"quantization_config": {"quant_method": "exl3", "bits": 0}})", R"({"quantization_config": 5})", "["}) {
    EXPECT_THROW(name(bad), Error) << bad;
  }
}

}  // namespace
}  // namespace tandem::engine
