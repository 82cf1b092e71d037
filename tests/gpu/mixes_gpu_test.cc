// The equality suite over a model on a GPU: random request mixes together and alone give the same tokens, whoever
// shares a step, whatever drafts, keeps and resumes, with graphs and without (design.md 1). Together the steps choose
// tokens where they can, alone the host does, from whole logits. How many: TANDEM_GPU_MIXES,
// first seed TANDEM_GPU_FIRST_MIX; of two ranks against one: TANDEM_GPU_RANK_MIXES, TANDEM_GPU_FIRST_RANK_MIX.
#include <cstdlib>

#include "base/log.h"
#include "device/test_gpu.h"
#include "engine/step_runner.h"
#include "run_mix.h"

namespace tandem::parity {
namespace {

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Ranks share the GPU, each with a queue of its own.
std::unique_ptr<engine::StepRunner> on_gpu(const LoadedWeights& w, const forward::Capacity& capacity,
                                           const forward::Ranks& ranks, forward::DrafterModel drafter) {
  static int64_t models = 0;
  const forward::GpuModelOptions options{.graphs = ++models % 4 != 0};
  std::vector<device::Gpu*> gpus{&device::gpu_under_test()};
  if (ranks.tensor_parallel_size > 1) gpus.push_back(&device::second_gpu_under_test());
  return engine::run_on_gpus(gpus, w.shape, w.weights, capacity, ranks, drafter, options);
}

void run_mixes(uint64_t first, uint64_t mixes, forward::Ranks ranks) {
  const std::string source = TANDEM_SOURCE_DIR;
  set_log_level(LogLevel::error);  // drafts outside of the vocabulary are meant
  MixRunner runner({{"nano",
                     {source + "/models/nano", source + "/models/nano-dflash2",
                      source + "/tests/golden/nano/case_T1500.safetensors"}}},
                   on_gpu);
  MixReport sum;
  for (uint64_t seed = first; seed < first + mixes; ++seed) {
    const auto type = seed % 2 == 0 ? forward::CacheType::bf16 : forward::CacheType::fp8;
    const MixReport report = runner.run(
        seed, ranks, false, {.cache_type = type, .compute = forward::Compute::bf16, .sampling = MixSampling::step});
    for (const std::string& failure : report.failures) ADD_FAILURE() << "mix " << seed << ": " << failure;
    sum.add(report);
  }
  EXPECT_GT(sum.tokens, 0);
  std::printf("%llu mixes: %lld requests, %lld tokens, %lld steps, %lld cached tokens, %lld preemptions\n",
              static_cast<unsigned long long>(mixes), static_cast<long long>(sum.requests),
              static_cast<long long>(sum.tokens), static_cast<long long>(sum.steps),
              static_cast<long long>(sum.cached_tokens), static_cast<long long>(sum.preemptions));
}

// The emulator takes minutes for a mix: there it is a small one, in which drafts are accepted.
TEST(MixesOnGpu, TogetherAndAlone) {
  const bool emulated = device::gpu_is_emulated();
  run_mixes(setting("TANDEM_GPU_FIRST_MIX", emulated ? 40047 : 40000), setting("TANDEM_GPU_MIXES", emulated ? 1 : 100),
            {});
}

// Together on two ranks, alone on one.
TEST(MixesOnGpu, TwoRanksTogetherAndOneAlone) {
  const uint64_t mixes = setting("TANDEM_GPU_RANK_MIXES", device::gpu_is_emulated() ? 0 : 20);
  if (mixes == 0) GTEST_SKIP() << "src/engine/gpu_ranks_gpu_test.cc is what the emulator runs";
  run_mixes(setting("TANDEM_GPU_FIRST_RANK_MIX", 50000), mixes, {0, 2, 1});
}

}  // namespace
}  // namespace tandem::parity
