// Against the tables of spec/performance.md and spec/quantization.md 4.7.
#include "model/inspect_floor.h"

#include <cmath>
#include <limits>

#include "model/cache_bytes.h"
#include "model/testing/checkpoint_files.h"

namespace tandem::model::inspect_floor_test {
namespace {

Shape flash() { return read_shape(testing::source_dir() / "tests/golden/configs/glm-5.3-flash.json"); }

// Every matrix and vector with this many bits, routed experts with others.
std::vector<FormatRow> weights(const Shape& shape, double bits, double expert_bits) {
  const Inventory inventory = make_inventory(shape);
  std::vector<FormatRow> rows;
  for (const auto* list : {&inventory.main_rows, &inventory.mtp_rows}) {
    for (const ParameterRow& row : *list) {
      const double width = row.component == Component::routed_experts ? expert_bits : bits;
      rows.push_back({row.component, list == &inventory.mtp_rows, "made up", row.units, row.total(),
                      std::llround(static_cast<double>(row.total()) * width / 8)});
    }
  }
  return rows;
}

TEST(InspectFloor, OneTokenOfFlash) {
  const Shape shape = flash();
  const CacheRow fp8 = cache_row(shape, CacheType::fp8);
  const StepBytes step = step_bytes(shape, weights(shape, 16, 4), {4400, 1'000'000, fp8}, 1);
  EXPECT_NEAR(step.distinct_experts, 8, 1e-9);
  EXPECT_NEAR((step.dense + step.experts) / 1e9, 20.7, 0.15);
  EXPECT_NEAR(step.experts / 1e9, 4.228, 0.001);                // without the scales of K4
  EXPECT_NEAR(step.states, 142'606'336 * (1 + 1 / 16.0), 0.5);  // 0.143 GB read
  EXPECT_NEAR(step.latents / 1e6, 11.9, 0.05);
  EXPECT_NEAR(step.index_keys / 1e6, 363, 0.1);
  EXPECT_EQ(step_bytes(shape, weights(shape, 16, 4), {4400, 1000, fp8}, 1).index_keys, 0) << "all attend";
  EXPECT_EQ(step_bytes(shape, weights(shape, 16, 4), {4400, 0, fp8}, 1).latents, 0);
}

TEST(InspectFloor, RowsOfAStep) {
  const Shape shape = flash();
  const Floor floor = floor_of(shape, weights(shape, 16, 4), {4400, 0, cache_row(shape, CacheType::fp8)});
  const double distinct[] = {8.0, 15.8, 30.7, 58.1, 104.5, 171.1, 240.5};
  const double experts_gb[] = {2.11, 4.17, 8.11, 15.36, 27.61, 45.21, 63.56};  // of each of two ranks
  ASSERT_EQ(floor.steps.size(), 7u);
  for (size_t i = 0; i < floor.steps.size(); ++i) {
    EXPECT_EQ(floor.steps[i].rows, 1 << i);
    EXPECT_NEAR(floor.steps[i].distinct_experts, distinct[i], 0.05);
    EXPECT_NEAR(floor.steps[i].experts / 2e9, experts_gb[i], 0.02);
    EXPECT_EQ(floor.steps[i].dense, floor.steps[0].dense);
  }
  EXPECT_NEAR(floor.steps[6].states, 2 * 142'606'336.0, 0.5);
  EXPECT_NEAR(floor.seconds(floor.steps[0]), floor.steps[0].total() / 4.4e12, 1e-12);
}

TEST(InspectFloor, WhatIsNotRead) {
  const Shape shape = flash();
  auto rows = weights(shape, 16, 16);
  const StepBytes all = step_bytes(shape, rows, {1, 0, cache_row(shape, CacheType::bf16)}, 1);
  double sum = 0;
  for (const FormatRow& row : rows) sum += bytes_per_token(row, shape);
  EXPECT_NEAR(all.dense + all.experts, sum, 1);
  EXPECT_NEAR(sum, 2 * 16'742'333'246.0, 1) << "spec/model.md 1.3, active per token";
  std::erase_if(rows, [](const FormatRow& row) { return row.mtp || row.component == Component::embedding; });
  EXPECT_EQ(step_bytes(shape, rows, {1, 0, cache_row(shape, CacheType::bf16)}, 1).total(), all.total());
}

TEST(InspectFloor, SettingsThatAreRefused) {
  const Shape shape = flash();
  for (const double rate : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")})
    testing::error_of([&] { floor_of(shape, {}, {rate, 0, {}}); }, ErrorCode::usage);
  for (const int64_t context : {int64_t{-1}, int64_t{1'048'577}})
    testing::error_of([&] { floor_of(shape, {}, {1, context, {}}); }, ErrorCode::usage);
}

}  // namespace
}  // namespace tandem::model::inspect_floor_test
