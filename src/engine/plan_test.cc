// The plan against a formula that can be checked by hand: 1,000 bytes a page, 50 a row of the chunk, 300 a stream, 200
// a kept state, 2 an entry of the longest page table, 7 fixed.
#include "engine/plan.h"

#include "base/error.h"

namespace tandem::engine::plan_test {
namespace {

int64_t formula(const forward::Capacity& c) {
  return 7 + 50 * c.max_rows + 1000 * c.pages + 300 * c.slots + 200 * c.kept_states + 2 * c.max_stream_pages;
}

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

TEST(Plan, TheDefaults) {
  const Plan p = make_plan(int64_t{1} << 40, formula, {});
  EXPECT_EQ(p.page_bytes, 1000);
  EXPECT_EQ(p.stream_bytes, 300);
  EXPECT_EQ(p.kept_state_bytes, 200);
  EXPECT_EQ(p.capacity.slots, 4);
  EXPECT_EQ(p.capacity.max_rows, 512);
  EXPECT_EQ(p.capacity.kept_states, (256 << 20) / 200);
  EXPECT_EQ(p.capacity.pages, (int64_t{1} << 30) / 1000);  // one of them is the null page
  EXPECT_EQ(p.max_model_len, (p.capacity.pages - 1) * 256);
  EXPECT_EQ(p.capacity.max_stream_pages, p.capacity.pages - 1);
  EXPECT_EQ(p.pool_rows, p.max_model_len);
  EXPECT_EQ(p.total_bytes, formula(p.capacity));
  EXPECT_EQ(p.machine_bytes(), p.total_bytes);
}

TEST(Plan, ThePoolHoldsMoreThanOneStream) {
  // Four streams and no kept state of 257 tokens could hold two pages each, whatever the budget.
  const Plan p = plan({.max_model_len = 257, .kept_states_memory = 0});
  EXPECT_EQ(p.capacity.pages, 4 * 2 + 1);
  EXPECT_EQ(p.capacity.max_stream_pages, 2);
  EXPECT_EQ(p.max_model_len, 257);
  // Kept prefixes need rows too.
  EXPECT_EQ(plan({.max_model_len = 257, .kept_states_memory = 3 * 200 + 199}).capacity.pages, (4 + 3) * 2 + 1);
  EXPECT_EQ(plan({.kv_cache_memory = 10'999, .max_model_len = 257}).capacity.pages, 10);  // the budget binds
  EXPECT_EQ(plan({}, 100).max_model_len, 100);
}

TEST(Plan, ThePoolBindsAndTheNullPageCounts) {
  const Plan p = plan({.kv_cache_memory = 10'999});
  EXPECT_EQ(p.capacity.pages, 10);
  EXPECT_EQ(p.max_model_len, 9 * 256);
}

TEST(Plan, KeptStatesAreWhatTheirMemoryHolds) {
  EXPECT_EQ(plan({.kept_states_memory = 0}).capacity.kept_states, 0);
  EXPECT_EQ(plan({.kept_states_memory = 199}).capacity.kept_states, 0);
  EXPECT_EQ(plan({.kept_states_memory = 1000}).capacity.kept_states, 5);
}

TEST(Plan, UnderContextParallelismARankHoldsHalfOfATable) {
  const Plan p = plan({.kv_cache_memory = 10'999, .ranks = {0, 2, 2}});
  EXPECT_EQ(p.page_groups, 2);
  EXPECT_EQ(p.capacity.pages, 10);  // of each rank
  EXPECT_EQ(p.pool_rows, 2 * 9 * 256);
  EXPECT_EQ(p.max_model_len, 2 * 9 * 256);
  EXPECT_EQ(p.capacity.max_stream_pages, 18);
  EXPECT_EQ(p.machine_bytes(), 2 * p.total_bytes);
  // An odd table: the first rank has the larger half.
  EXPECT_EQ(
      plan({.max_model_len = 5 * 256, .max_num_seqs = 1, .kept_states_memory = 0, .ranks = {0, 2, 2}}).capacity.pages,
      3 + 1);
  EXPECT_EQ(plan({.kv_cache_memory = 10'999, .ranks = {0, 2, 1}}).max_model_len, 9 * 256);  // replicated
}

TEST(Plan, WhatDraftersNeed) {
  EXPECT_TRUE(plan({}).capacity.mtp);
  EXPECT_FALSE(plan({.mtp = false}).capacity.mtp);
  EXPECT_EQ(plan({}).capacity.max_logit_rows, 32);
  EXPECT_EQ(plan({.max_num_seqs = 4, .max_draft_rows = 60}).capacity.max_logit_rows, 64);
  EXPECT_EQ(plan({.max_num_seqs = 4, .max_draft_rows = 8}).capacity.max_logit_rows, 32);
  EXPECT_EQ(refusal({.max_draft_rows = -1}).code(), ErrorCode::usage);
}

TEST(Plan, APoolThatIsTooSmallSaysWhatWouldFit) {
  const Error window = refusal({.kv_cache_memory = 10'999, .max_model_len = 9 * 256 + 1});
  EXPECT_EQ(window.code(), ErrorCode::does_not_fit);
  EXPECT_NE(window.expected().find("--max-model-len 2304 or --kv-cache-memory of at least 11KiB"), std::string::npos)
      << window.what();
  EXPECT_EQ(plan({.kv_cache_memory = 10'999, .max_model_len = 9 * 256}).max_model_len, 9 * 256);
  EXPECT_EQ(plan({.kv_cache_memory = 11 * 1024, .max_model_len = 9 * 256 + 1}).capacity.pages, 11);
  EXPECT_EQ(refusal({.kv_cache_memory = 1999}).code(), ErrorCode::does_not_fit);
  EXPECT_EQ(plan({.kv_cache_memory = 2000}).max_model_len, 256);
  EXPECT_EQ(refusal({.kv_cache_memory = 10'999, .max_model_len = 18 * 256 + 1, .ranks = {0, 2, 2}}).expected(),
            "--max-model-len 4608 or --kv-cache-memory of at least 11KiB");
}

TEST(Plan, EachRemedyThatIsNamedFits) {
  const PlanSettings base{.kv_cache_memory = 1'000'000, .kept_states_memory = 1'000'000, .machine_memory = 2'010'000};
  const Error error = refusal(base);  // 1,000 pages, 5,000 states, 512 rows: 2,028,805 bytes
  EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
  EXPECT_EQ(error.where(), "memory");
  EXPECT_EQ(error.expected(),
            "--kept-states-memory 915KiB or --max-num-batched-tokens 128 or --kv-cache-memory 915KiB");
  PlanSettings kept = base, chunk = base, pool = base;
  kept.kept_states_memory = 915 << 10;
  chunk.max_num_batched_tokens = 128;
  pool.kv_cache_memory = 915 << 10;
  for (const PlanSettings& s : {kept, chunk, pool}) EXPECT_LE(plan(s).total_bytes, 2'010'000);
}

TEST(Plan, WhereOneRemedyIsNotEnoughAllAreNamed) {
  const PlanSettings base{.kv_cache_memory = 1'000'000, .kept_states_memory = 1'000'000, .machine_memory = 100'000};
  const std::string expected = refusal(base).expected();
  EXPECT_EQ(expected,
            "--kept-states-memory 0B with --max-num-seqs 1 with --max-num-batched-tokens 16 with "
            "--kv-cache-memory 77KiB");
  EXPECT_LE(plan({.kv_cache_memory = 77 << 10,
                  .max_num_batched_tokens = 16,
                  .max_num_seqs = 1,
                  .kept_states_memory = 0,
                  .machine_memory = 100'000})
                .total_bytes,
            100'000);
  EXPECT_EQ(refusal({.machine_memory = 1000}).expected(), "smaller weights or a larger machine");
}

TEST(Plan, RanksOfOneMachineShareItsMemoryAndGpusDoNot) {
  const PlanSettings two{.kv_cache_memory = 10'999, .kept_states_memory = 0, .ranks = {0, 2, 1}};
  const int64_t bytes = plan(two).total_bytes;
  PlanSettings shared = two, each = two;
  shared.machine_memory = 2 * bytes - 1;
  each.machine_memory = bytes;
  each.memory_of_each_rank = true;
  EXPECT_EQ(refusal(shared).code(), ErrorCode::does_not_fit);
  EXPECT_EQ(plan(each).total_bytes, bytes);
  shared.machine_memory = 2 * bytes;
  EXPECT_EQ(plan(shared).total_bytes, bytes);
}

TEST(Plan, FillingTheMemoryLeavesLessThanAPage) {
  const PlanSettings fill{
      .kept_states_memory = 1000, .machine_memory = 1'000'000, .memory_of_each_rank = true, .fill_memory = true};
  const Plan p = plan(fill);
  EXPECT_LE(p.total_bytes, 1'000'000);
  EXPECT_GT(p.total_bytes + 1000 + 2 * (4096 - p.capacity.max_stream_pages), 1'000'000);  // planned with a full table
  PlanSettings small = fill;
  small.machine_memory = 28'000;  // the chunk alone needs 25,600
  const Error error = refusal(small);
  EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
  EXPECT_NE(error.expected().find("--max-num-batched-tokens"), std::string::npos) << error.what();
  PlanSettings long_stream = fill;
  long_stream.max_model_len = 1'000'000;
  EXPECT_EQ(refusal(long_stream).code(), ErrorCode::does_not_fit);
  EXPECT_NE(refusal(long_stream).expected().find("--max-model-len"), std::string::npos);
}

// A GPU's activations grow with the longest stream that the pool can hold.
TEST(Plan, FillingCountsActivationsOfTheStreamsThatFit) {
  const PlannedBytes bytes = [](const forward::Capacity& c) {
    return 1000 * c.pages + 10 * c.slots + 100 * c.kept_states + 2000 * std::min(c.max_stream_pages, c.pages);
  };
  const Plan p = make_plan(256 * 100, bytes,
                           {.max_num_seqs = 2,
                            .kept_states_memory = 0,
                            .machine_memory = 320'000,
                            .memory_of_each_rank = true,
                            .fill_memory = true});
  EXPECT_LE(p.total_bytes, 320'000);
  EXPECT_EQ(p.capacity.max_stream_pages, 100);
  EXPECT_EQ(p.capacity.pages, 119);  // 320,000 − 20 − 2000 · 100
}

TEST(Plan, SettingsOutsideTheirRangeAreUsageErrors) {
  EXPECT_EQ(refusal({.max_model_len = 101}, 100).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.max_model_len = 1}).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.max_model_len = -5}).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.max_num_batched_tokens = -1}).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.max_num_batched_tokens = 100'000}).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.max_num_batched_tokens = 3}).code(), ErrorCode::usage);  // four streams need four rows
  EXPECT_EQ(refusal({.kv_cache_memory = -1}).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.max_num_seqs = 0}).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.max_num_seqs = -1}).where(), "--max-num-seqs");
  EXPECT_EQ(refusal({.max_num_seqs = 65}).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.kept_states_memory = -1}).where(), "--kept-states-memory");
  EXPECT_EQ(refusal({.ranks = {0, 3, 1}}).where(), "--tensor-parallel-size");
  EXPECT_EQ(refusal({.ranks = {0, 0, 1}}).code(), ErrorCode::usage);
  EXPECT_EQ(refusal({.ranks = {0, 2, 0}}).code(), ErrorCode::usage);
  const Error alone = refusal({.ranks = {0, 1, 2}});
  EXPECT_EQ(alone.code(), ErrorCode::usage);
  EXPECT_EQ(alone.expected(), "1, or --tensor-parallel-size 2");
}

TEST(Plan, SizesAreWrittenAsAUserTypesThem) {
  EXPECT_EQ(size_at_least((1 << 20) + 1), "2MiB");
  EXPECT_EQ(size_at_most((2 << 20) - 1), "1MiB");
  EXPECT_EQ(size_at_least(1025), "2KiB");
  EXPECT_EQ(size_at_most(1000), "1000B");
}

}  // namespace
}  // namespace tandem::engine::plan_test
