// The plan against a formula that can be checked by hand: 1,000 bytes a page, 50 a row of the chunk, 7 fixed.
#include "engine/plan.h"

#include "base/error.h"

namespace tandem::engine {
namespace {

int64_t formula(const forward::Capacity& c) { return 7 + 50 * c.max_rows + 1000 * c.pages * c.slots; }

Plan plan(const PlanSettings& settings, int64_t max_position_embeddings = 1048576) {
  return make_plan(max_position_embeddings, formula, settings);
}

Error refusal(const PlanSettings& settings, int64_t max_position_embeddings = 1048576) {
  try {
    plan(settings, max_position_embeddings);
  } catch (const Error& e) {
    return e;
  }
  return Error(ErrorCode::failed_check, "was not refused", "");
}

TEST(Plan, TheDefaultIsOneGibibyteOfPages) {
  const Plan p = plan({});
  EXPECT_EQ(p.page_bytes, 1000);
  EXPECT_EQ(p.max_model_len, 1048576);  // 4,096 pages need 4 MB: the model's own limit binds
  EXPECT_EQ(p.capacity.pages, 4096 + 1);
  EXPECT_EQ(p.capacity.slots, 1);
  EXPECT_EQ(p.capacity.max_rows, 512);
  EXPECT_EQ(p.total_bytes, formula(p.capacity));
  const Plan large = make_plan(int64_t{1} << 40, formula, {});
  EXPECT_EQ(large.capacity.pages, (int64_t{1} << 30) / 1000);
  EXPECT_EQ(large.max_model_len, (large.capacity.pages - 1) * 256);
}

TEST(Plan, ThePoolBindsAndTheNullPageCounts) {
  const Plan p = plan({.kv_cache_memory = 10'999});
  EXPECT_EQ(p.capacity.pages, 10);
  EXPECT_EQ(p.max_model_len, 9 * 256);
}

TEST(Plan, OnlyThePagesOfTheWindowAreTaken) {
  const Plan p = plan({.max_model_len = 257, .max_num_batched_tokens = 16});
  EXPECT_EQ(p.capacity.pages, 2 + 1);
  EXPECT_EQ(p.max_model_len, 257);
  EXPECT_EQ(p.capacity.max_rows, 16);
  EXPECT_EQ(plan({}, 100).max_model_len, 100);
}

TEST(Plan, WhatDoesNotFitSaysWhatWould) {
  const Error window = refusal({.kv_cache_memory = 10'999, .max_model_len = 9 * 256 + 1});
  EXPECT_EQ(window.code(), ErrorCode::does_not_fit);
  EXPECT_NE(window.expected().find("--max-model-len 2304 or --kv-cache-memory of at least 1 MiB"), std::string::npos)
      << window.what();
  EXPECT_EQ(plan({.kv_cache_memory = 10'999, .max_model_len = 9 * 256}).max_model_len, 9 * 256);
  EXPECT_EQ(plan({.kv_cache_memory = 11'000, .max_model_len = 9 * 256 + 1}).capacity.pages, 11);

  EXPECT_EQ(refusal({.kv_cache_memory = 1999}).code(), ErrorCode::does_not_fit);
  EXPECT_EQ(plan({.kv_cache_memory = 2000}).max_model_len, 256);

  const Error machine = refusal({.max_model_len = 2560, .max_num_batched_tokens = 1, .machine_memory = 10'000});
  EXPECT_EQ(machine.code(), ErrorCode::does_not_fit);
  EXPECT_EQ(machine.expected(), "--max-model-len 2048 or less");
  EXPECT_EQ(plan({.max_model_len = 2048, .max_num_batched_tokens = 1, .machine_memory = 10'000}).total_bytes, 9057);
  EXPECT_EQ(refusal({.max_model_len = 2560, .machine_memory = 10'000}).code(), ErrorCode::does_not_fit);
}

TEST(Plan, SettingsOutsideTheirRangeAreUsageErrors) {
  EXPECT_EQ(refusal({.max_model_len = 101}, 100).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.max_model_len = 1}).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.max_model_len = -5}).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.max_num_batched_tokens = -1}).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.max_num_batched_tokens = 100'000}).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.kv_cache_memory = -1}).code(), ErrorCode::usage);
}

}  // namespace
}  // namespace tandem::engine
