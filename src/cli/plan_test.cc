// The plan and what is loaded are the same, to the byte, whatever drafters there are.
#include "cli/plan.h"

#include "base/error.h"
#include "cli/loaded_model.h"

namespace tandem::cli::plan_test {
namespace {

struct Case {
  std::string drafter = "auto", dtype = "auto";
  int32_t ranks = 1, page_ranks = 1, streams = 3;
  int threads = 1;
};

TEST(Plan, IsWhatIsLoaded) {
  for (const Case& c : {Case{"none"}, Case{"copy"}, Case{"mtp"}, Case{"dflash2"}, Case{"auto"}, Case{"auto", "bf16"},
                        Case{"auto", "auto", 2}, Case{"auto", "bf16", 2, 2, 5}, Case{"auto", "fp8"},
                        Case{"mtp", "fp8_row", 2}, Case{"auto", "nvfp4", 2, 2}, Case{"none", "bf16_fp8_index"},
                        Case{"dflash2", "auto", 1, 1, 8, 2}, Case{"mtp", "auto", 2, 1, 1, 0}}) {
    PlanOptions options;
    options.host_memory = "8GiB";
    options.kv_cache_dtype = c.dtype;
    options.drafter = c.drafter;
    options.tensor_parallel_size = c.ranks;
    options.decode_context_parallel_size = c.page_ranks;
    options.max_num_seqs = c.streams;
    options.kv_cache_memory = int64_t{8} << 20;
    options.kept_states_memory = int64_t{16} << 20;
    options.threads = c.threads;
    const PlanReport report = make_report(options);

    LoadOptions load;
    load.kv_cache_dtype = c.dtype;
    load.drafting.drafter = c.drafter;
    load.tensor_parallel_size = c.ranks;
    load.decode_context_parallel_size = c.page_ranks;
    load.max_num_seqs = c.streams;
    load.kv_cache_memory = options.kv_cache_memory;
    load.kept_states_memory = *options.kept_states_memory;
    load.threads = c.threads;
    const LoadedModel loaded(load);

    ASSERT_TRUE(report.plan) << report.problem;
    EXPECT_EQ(report.plan->total_bytes, loaded.plan().total_bytes) << c.drafter << ' ' << c.dtype << ' ' << c.ranks;
    EXPECT_EQ(report.plan->capacity.pages, loaded.plan().capacity.pages);
    EXPECT_EQ(report.plan->capacity.kept_states, loaded.plan().capacity.kept_states);
    EXPECT_EQ(report.plan->capacity.max_logit_rows, loaded.plan().capacity.max_logit_rows);
    EXPECT_EQ(report.plan->capacity.mtp, loaded.plan().capacity.mtp);
    EXPECT_EQ(report.plan->max_model_len, loaded.plan().max_model_len);
    EXPECT_EQ(report.kept_state_bytes(), loaded.plan().kept_state_bytes);
    EXPECT_EQ(report.drafting.shape, loaded.drafting().shape);
    EXPECT_EQ(report.drafting.folder, loaded.drafting().folder);
  }
}

// GPUs share the drafter's heads: what a slot and a kept state cost beside the text model is half of the rows.
TEST(Plan, GpusHaveHalfOfTheDraftersHeads) {
  PlanOptions options;
  options.model = std::string(TANDEM_SOURCE_DIR) + "/tests/golden/configs/glm-5.3-flash.json";
  options.weights = "exl3:4";
  options.drafter = "dflash2";
  options.gpus = "2x96GiB";
  options.kv_cache_memory = int64_t{1} << 30;
  options.kept_states_memory = int64_t{1} << 30;
  const PlanReport both = make_report(options);
  ASSERT_TRUE(both.plan) << both.problem;
  EXPECT_EQ(both.plan->kept_state_bytes, both.kept_state_bytes());
  EXPECT_EQ(both.kept_drafter, 2047 * 10240);
  options.drafter = "copy";
  const PlanReport without = make_report(options);
  ASSERT_TRUE(without.plan);
  EXPECT_EQ(both.plan->kept_state_bytes - without.plan->kept_state_bytes, 2047 * 10240);
  EXPECT_GT(both.activations(), without.activations()) << "the drafter's block needs scratch";
  EXPECT_LT(both.activations(), without.activations() + (int64_t{256} << 20));
}

TEST(Plan, NeverMoreDraftRowsThanAStepVerifies) {
  PlanOptions options;
  options.host_memory = "8GiB";
  for (const auto& [streams, rows] : {std::pair{1, 32}, {2, 32}, {3, 48}, {4, 60}, {64, 120}}) {
    options.max_num_seqs = streams;
    const PlanReport report = make_report(options);
    ASSERT_TRUE(report.plan) << report.problem;
    EXPECT_EQ(report.plan->capacity.max_logit_rows, rows) << streams;
  }
}

}  // namespace
}  // namespace tandem::cli::plan_test
