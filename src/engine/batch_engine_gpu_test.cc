// The engine over the model on a GPU: replies, the plan against what is allocated, nothing new after ready, failure.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "device/test_watched_gpu.h"
#include "engine/batch_engine.h"
#include "engine/plan_bytes.h"
#include "engine/step_runner.h"
#include "engine/testing.h"
#include "forward/gpu_model.h"
#include "forward/test_models.h"

namespace tandem::engine::batch_engine_gpu_test {
namespace {

// Two streams and one kept state of nano, as the planner lays them out for a GPU.
Plan small_plan(const forward::Loaded& nano) {
  PlanSettings settings;
  settings.max_model_len = 512;
  settings.max_num_seqs = 2;
  settings.max_num_batched_tokens = 16;
  settings.kept_states_memory = int64_t{8} << 20;
  settings.cache_type = forward::CacheType::bf16;
  settings.compute = forward::Compute::bf16;
  settings.machine_memory = int64_t{200} << 20;
  settings.memory_of_each_rank = settings.fill_memory = true;
  return make_plan(nano.shape.max_position_embeddings,
                   gpu_model_bytes(device::gpu_under_test().properties(), nano.shape), settings);
}

BatchEngineOptions options_of(const forward::Loaded& nano, const Plan& plan) {
  BatchEngineOptions options;
  options.scheduler.vocab_size = options.scheduler.sampled_tokens = static_cast<int32_t>(nano.shape.vocab_size);
  options.scheduler.max_model_len = plan.max_model_len;
  options.scheduler.capacity = plan.capacity;
  options.scheduler.page_groups = plan.page_groups;
  options.scheduler.kept_state_bytes = plan.kept_state_bytes;
  return options;
}

class EngineOnGpu : public ::testing::Test {
 protected:
  const forward::Loaded& nano_ = forward::loaded("nano");
  const Plan plan_ = small_plan(nano_);
  device::WatchedGpu gpu_;
};

TEST_F(EngineOnGpu, ThePlanIsWhatTheModelAllocates) {
  const forward::GpuModel model(gpu_, nano_.shape, nano_.weights, plan_.capacity);
  EXPECT_LE(plan_.total_bytes, int64_t{200} << 20);
  EXPECT_EQ(gpu_.device_bytes,
            plan_.total_bytes + forward::GpuModel::weight_bytes(nano_.shape, nano_.weights, plan_.capacity.mtp));
}

TEST_F(EngineOnGpu, RepliesDoNotDependOnCompanyAndNothingIsAllocatedAfterReady) {
  const auto runner = run_on_gpu(gpu_, nano_.shape, nano_.weights, plan_.capacity);
  BatchEngine engine(*runner, options_of(nano_, plan_));
  const forward::RunnerCounts ready = runner->counts();
  EXPECT_GT(ready.allocations, 0);
  EXPECT_GT(ready.kernels_loaded, 0);
  const std::vector<int32_t> prompt = {1990, 1992, 17, 230, 45, 601};
  Collector alone, first, second;
  engine.submit(greedy(prompt, 3), alone.sink());
  EXPECT_EQ(alone.wait().reason, FinishReason::length);
  engine.submit(greedy(prompt, 3), first.sink());
  engine.submit(greedy({5, 6, 7}, 2), second.sink());
  EXPECT_EQ(first.wait().reason, FinishReason::length);
  EXPECT_EQ(second.wait().reason, FinishReason::length);
  EXPECT_EQ(alone.tokens().size(), 3u);
  EXPECT_EQ(first.tokens(), alone.tokens());
  const Status status = engine.status();
  EXPECT_EQ(status.runner.allocations, ready.allocations);
  EXPECT_EQ(status.runner.kernels_loaded, ready.kernels_loaded);
  EXPECT_GT(status.runner.graph_steps, 0);
}

// A NaN in a convolution's taps reaches the state when the first block of 16 rows is full. The logits are the model's.
TEST_F(EngineOnGpu, NumericsAreCheckedWhenAsked) {
  model::TextWeights weights = nano_.weights;
  const auto first =
      std::find_if(weights.layers.begin(), weights.layers.end(), [](const auto& l) { return l.kda.has_value(); });
  ASSERT_NE(first, weights.layers.end());
  const std::string layer = "layer " + std::to_string(first - weights.layers.begin()) + ", KDA state of slot ";
  first->kda->conv.back() = std::numeric_limits<float>::quiet_NaN();  // of a value channel
  for (const bool on_gpu : {false, true}) {
    const auto runner = on_gpu ? run_on_gpu(gpu_, nano_.shape, weights, plan_.capacity)
                               : run_on_cpu(nano_.shape, weights, plan_.capacity, {}, 1);
    BatchEngineOptions options = options_of(nano_, plan_);
    options.check_numerics = true;
    BatchEngine engine(*runner, options);
    Collector collector;
    engine.submit(greedy(some_prompt(40), 2), collector.sink());
    const Event last = collector.wait();
    EXPECT_EQ(last.reason, FinishReason::error);
    EXPECT_NE(last.error.find(on_gpu ? "--check-numerics: " : "--check-numerics: " + layer), std::string::npos)
        << last.error;
  }
}

TEST_F(EngineOnGpu, FiniteNumbersPassTheCheck) {
  for (const bool on_gpu : {false, true}) {
    const auto runner = on_gpu ? run_on_gpu(gpu_, nano_.shape, nano_.weights, plan_.capacity)
                               : run_on_cpu(nano_.shape, nano_.weights, plan_.capacity, {}, 1);
    BatchEngineOptions options = options_of(nano_, plan_);
    options.check_numerics = true;
    BatchEngine engine(*runner, options);
    Collector collector;
    engine.submit(greedy(some_prompt(18), 1), collector.sink());
    EXPECT_EQ(collector.wait().reason, FinishReason::length);
  }
}

TEST_F(EngineOnGpu, AnErrorOfTheGpuBreaksTheEngine) {
  const auto runner = run_on_gpu(gpu_, nano_.shape, nano_.weights, plan_.capacity);
  BatchEngine engine(*runner, options_of(nano_, plan_));
  gpu_.broken = true;
  Collector running;
  engine.submit(greedy({5, 6, 7}, 2), running.sink());
  const Event last = running.wait();
  EXPECT_EQ(last.reason, FinishReason::error);
  EXPECT_NE(last.error.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << last.error;
  const Status status = engine.status();
  EXPECT_TRUE(status.broken);
  EXPECT_FALSE(status.ready);
  gpu_.broken = false;  // a device that seems to have recovered is not trusted
  EXPECT_THROW(engine.submit(greedy({5, 6, 7}, 2), running.sink()), Error);
}

}  // namespace
}  // namespace tandem::engine::batch_engine_gpu_test
