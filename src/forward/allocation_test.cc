// Nothing grows after ready (design.md 1, promise 5): a step allocates nothing, whatever it holds. Every allocation of
// this test program is counted.
#include <atomic>
#include <cstdlib>
#include <new>

#include "device/threads.h"
#include "forward/dflash2_test_streams.h"
#include "forward/test_models.h"
#include "forward/text_model.h"

namespace {

std::atomic<int64_t> allocations{0};

void* counted(std::size_t size, std::size_t alignment) {
  ++allocations;
  const std::size_t rounded = (std::max<std::size_t>(size, 1) + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// NOLINTBEGIN: the standard's own signatures
// noinline: GCC otherwise sees through one of a pair and takes malloc and free for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) { return counted(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
// NOLINTEND

namespace tandem::forward::allocation_test {
namespace {

class Allocation : public ::testing::TestWithParam<std::pair<const char*, CacheType>> {};

TEST_P(Allocation, AStepAllocatesNothing) {
  const Loaded& model = loaded(GetParam().first);
  device::Threads threads(2);
  TextModel text(model.shape, model.weights, threads,
                 Capacity{.slots = 2,
                          .pages = 9,
                          .max_rows = 40,
                          .max_logit_rows = 4,
                          .kept_states = 2,
                          .page_rows = 64,
                          .cache_type = GetParam().second});
  const std::vector<int32_t> ids(120, 7);
  const auto step_of = [&](int32_t slot, int64_t position, int32_t rows) {
    Step step = single_stream_step(std::span(ids).first(static_cast<size_t>(rows)), position, 4);
    step.segments[0].slot = slot;
    step.logit_rows = {rows - 1};
    if (slot == 1) step.page_tables = {5, 6, 7, 8};
    return step;
  };
  std::vector<Step> steps;
  for (int64_t position = 0; position < 120; position += 40) steps.push_back(step_of(0, position, 40));
  Step both = step_of(0, 120, 1);  // a decode row beside a prompt
  both.tokens.insert(both.tokens.end(), ids.begin(), ids.begin() + 20);
  for (int64_t i = 0; i < 20; ++i) both.positions.push_back(i);
  both.page_tables.insert(both.page_tables.end(), {5, 6, 7, 8});
  both.segments.push_back({1, 4, 4, 1, 20, 20, 0});
  both.logit_rows = {0, 20};
  steps.push_back(both);
  Step moves = step_of(1, 21, 8);
  moves.segments[0].certain_rows = 1;  // drafts
  moves.keeps = {{0, 0, 121}, {1, 1, 20}};
  moves.restores = {{1, 1, 20}};
  moves.page_copies = {{5, 6, 20, 0}};
  moves.segments[0].position = 20;
  moves.positions = {20, 21, 22, 23, 24, 25, 26, 27};
  moves.head_slots = {0};
  steps.push_back(moves);
  if (model.weights.mtp) {
    Step absorb = single_stream_step(std::span(ids).first(7), 21, 4);
    absorb.kind = StepKind::mtp_absorb;
    absorb.segments[0].slot = 1;
    absorb.page_tables = {5, 6, 7, 8};
    absorb.logit_rows = {6};
    steps.push_back(absorb);
    for (int64_t i = 0; i < 2; ++i) {
      Step chain = step_of(1, 28 + i, 1);
      chain.kind = StepKind::mtp_chain;
      steps.push_back(chain);
    }
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const int64_t before = allocations;
    text.run(steps[i]);
    EXPECT_EQ(allocations - before, 0) << "step " << i;
  }
  EXPECT_GT(allocations, 0);  // they are counted: the model was made
}

TEST(AllocationOfDrafts, TextStepsWithADrafterAndBlocksAllocateNothing) {
  for (const CacheType type : {CacheType::f32, CacheType::bf16, CacheType::nvfp4}) {
    DraftedNano nano(nano_drafter().shape, 2, type);
    const std::span<const int32_t> ids(long_chat());
    const std::vector<Rows> prompts = {{0, ids.first(100), 0, 0, 0}, {1, ids.subspan(100, 60), 0, 0, 30}};
    const std::vector<Rows> windows = {{0, ids.subspan(100, 8), 100, 7, 0}, {1, ids.subspan(160, 16), 60, 15, 0}};
    const std::vector<Anchor> anchors = {{0, 7, 103}, {1, 8, 70}};
    Step moves;
    moves.keeps = {{0, 0, 103}, {1, 1, 70}};
    moves.restores = {{0, 1, 70}};
    const std::vector<Step> steps = {text_step(prompts, DraftedNano::pages), text_step(windows, DraftedNano::pages),
                                     block_step(anchors), moves, block_step(std::span(anchors).last(1))};
    for (size_t i = 0; i < steps.size(); ++i) {
      const int64_t before = allocations;
      nano.text().run(steps[i]);
      EXPECT_EQ(allocations - before, 0) << "step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Allocation,
                         ::testing::Values(std::pair{"tinyA", CacheType::f32}, std::pair{"nano", CacheType::f32},
                                           std::pair{"tinyA", CacheType::bf16}, std::pair{"tinyA", CacheType::fp8},
                                           std::pair{"nano", CacheType::fp8_row},
                                           std::pair{"tinyA", CacheType::nvfp4}));

}  // namespace
}  // namespace tandem::forward::allocation_test
