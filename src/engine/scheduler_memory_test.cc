// A steady round allocates nothing: every new is counted.
#include <atomic>
#include <cstdlib>
#include <new>

#include "base/log.h"
#include "engine/scheduler_fixture.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// NOLINTBEGIN: the standard's own signatures
// noinline: GCC otherwise sees through one of a pair and takes malloc and free for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
// NOLINTEND

namespace tandem::engine::scheduler_memory_test {
namespace {

TEST(SchedulerMemory, ASteadyRoundAllocatesNothing) {
  set_log_level(LogLevel::error);
  const FakeModelOptions model_options{.slots = 8, .page_rows = 16, .keep_steps = false};
  auto options = options_for(model_options, 64, 2000);
  FakeModel model(model_options);
  Scheduler scheduler(options);
  int64_t tokens = 0;
  for (int i = 0; i < 8; ++i) {
    auto request = greedy(some_prompt(20 + i, i), 1000);
    request.sampling.temperature = i % 2;
    request.sampling.top_p = 0.9;
    scheduler.submit(
        request, [&tokens](const Event& event) { tokens += event.kind == Event::Kind::token; }, Time{0});
  }
  Snapshot snapshot;
  snapshot.streams.reserve(8);
  Time now{0};
  int64_t before = 0;
  for (int i = 0; i < 140; ++i) {
    if (i == 40) {  // prompts are done
      before = allocations;
      tokens = 0;
    }
    const forward::Step* step = scheduler.schedule(now);
    ASSERT_NE(step, nullptr);
    scheduler.describe(snapshot, now);
    (void)scheduler.status();
    model.run(*step);
    now += std::chrono::milliseconds(1);
    scheduler.complete(model.logits(), now);
  }
  EXPECT_EQ(allocations - before, 0);
  EXPECT_EQ(tokens, 800);
}

}  // namespace
}  // namespace tandem::engine::scheduler_memory_test
