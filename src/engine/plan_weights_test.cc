// Weight bytes against published sizes of GLM-5.3-Flash and against the bundled checkpoint.
#include "engine/plan_weights.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "model/split.h"

namespace tandem::engine::plan_weights_test {
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
  int64_t rows = 0;
  for (const model::FormatRow& row : bytes.rows) rows += row.bytes;
  EXPECT_EQ(rows, stored);
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

// Rows are a partition of the model: spec/model.md 1.3 by component.
TEST(PlanWeights, RowsByComponent) {
  using model::Component;
  const WeightBytes bytes = weights_in_format(flash(), parse_weight_format("fp8"));
  int64_t parameters = 0, total = 0;
  std::map<std::pair<bool, Component>, int64_t> of;
  for (const model::FormatRow& row : bytes.rows) {
    parameters += row.parameters;
    total += row.bytes;
    of[{row.mtp, row.component}] += row.parameters;
  }
  EXPECT_EQ(parameters, bytes.parameters);
  EXPECT_EQ(total, bytes.total);
  EXPECT_EQ((of[{false, Component::kda}]), 4'682'897'792);
  EXPECT_EQ((of[{false, Component::mla}]), 1'291'868'160);
  EXPECT_EQ((of[{false, Component::indexer}]), 82'190'592);
  EXPECT_EQ((of[{false, Component::dense_mlp}]), 452'984'832);
  EXPECT_EQ((of[{false, Component::shared_expert}]), 1'056'964'608);
  EXPECT_EQ((of[{false, Component::routed_experts}]), 304'405'807'104);
  EXPECT_EQ((of[{true, Component::routed_experts}]), 7'247'757'312);
  EXPECT_EQ((of[{true, Component::mtp_eh_proj}]), 33'554'432);
  const auto row = std::find_if(bytes.rows.begin(), bytes.rows.end(), [](const model::FormatRow& r) {
    return r.component == Component::routed_experts && !r.mtp;
  });
  EXPECT_EQ(row->format, "F8_E4M3 128x128 blocks");
  EXPECT_EQ(row->bytes, int64_t{42} * 288 * (25'165'824 + 6'144));  // spec/model.md 8.2
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

}  // namespace
}  // namespace tandem::engine::plan_weights_test
