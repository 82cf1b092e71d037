// Nothing grows after ready (design.md 1, promise 5): a round's proposals allocate nothing. Every allocation of this
// test program is counted.
#include <atomic>
#include <cstdlib>
#include <new>

#include "draft/drafter_fixture.h"

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

namespace tandem::draft::allocation_test {
namespace {

TEST(DraftAllocation, ARoundAllocatesNothing) {
  ModelDrafterOptions options;
  options.slots = 3;
  options.max_rows = 40;
  options.page_rows = 8;
  options.max_stream_pages = 64;
  options.vocab_size = FakeDraftModel::vocabulary;
  options.mtp = options.dflash2 = true;
  FakeDraftModel model(options);
  model.check_slots = false;
  ModelDrafter drafter(model, options);
  FakePicker picker;
  std::vector<StreamView> views(3);
  std::vector<Wish> wishes(3);
  std::vector<int32_t> take(3);
  const TimingTable table = built_in_table();
  for (TestStream& stream : model.streams) {
    stream.ids.reserve(512);
    for (int32_t i = 0; i < 64; ++i) stream.page_table.push_back(i + 1);
  }
  const Choice choices[] = {Choice::mtp, Choice::automatic, Choice::dflash2};
  const int64_t before = allocations.load();
  std::array<int64_t, sources> proposed{};
  for (int restart = 0; restart < 2; ++restart) {
    for (int32_t slot = 0; slot < 3; ++slot) {
      TestStream& stream = model.streams[static_cast<size_t>(slot)];
      stream.ids.resize(70);
      for (size_t i = 0; i < 70; ++i) stream.ids[i] = static_cast<int32_t>((i * i + i / 7) % 61);
      stream.prompt = 70;
      stream.choice = choices[slot];
      stream.absorbed = stream.length = 0;
      drafter.start(slot, stream.ids, 0);
    }
    for (int round = 0; round < 40; ++round) {
      for (int32_t slot = 0; slot < 3; ++slot) {
        TestStream& stream = model.streams[static_cast<size_t>(slot)];
        stream.step_first = stream.length;
        stream.length = stream.step_end = stream.ring_end = std::ssize(stream.ids);
        stream.ids.push_back(slot == 1 && round > 15 ? 5 : round);
        stream.ran = true;
        stream.most = 15;
        views[static_cast<size_t>(slot)] = stream.view(slot);
        wishes[static_cast<size_t>(slot)] = {&stream.proposal, 15};
      }
      drafter.propose(views, picker);
      allocate(options.policy, table, wishes, 0, take);
      for (int32_t slot = 0; slot < 3; ++slot) {
        const Proposal& proposal = model.streams[static_cast<size_t>(slot)].proposal;
        ++proposed[static_cast<size_t>(proposal.source)];
        drafter.verified(slot, proposal, take[static_cast<size_t>(slot)], 0);
      }
    }
  }
  EXPECT_EQ(allocations.load(), before);
  for (size_t source = 1; source < sources; ++source) EXPECT_GT(proposed[source], 10) << source;  // all were at work
  EXPECT_GT(ModelDrafter::planned_bytes(options), 3 * 2 * 65536 * 4);
}

}  // namespace
}  // namespace tandem::draft::allocation_test
