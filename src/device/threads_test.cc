// Every task runs once, its error reaches the caller, and the threads go on.
#include "device/threads.h"

#include <numeric>
#include <stdexcept>

namespace tandem::device::threads_test {
namespace {

TEST(Threads, EveryTaskRunsOnceInManyShortRegions) {
  Threads threads(3);
  EXPECT_EQ(threads.count(), 3);
  std::vector<int> hits(97);
  for (int round = 0; round < 2000; ++round) threads.run(97, [&](int64_t i) { ++hits[static_cast<size_t>(i)]; });
  for (const int hit : hits) EXPECT_EQ(hit, 2000);
}

// Jobs of different sizes follow each other at once: a worker that is late with one must never run a task of the next.
TEST(Threads, NoTaskRunsTwiceOrNotAtAll) {
  Threads threads(3);
  int64_t wrong = 0;
  for (int64_t round = 0; round < 200'000; ++round) {
    const int64_t tasks = 1 + round % 7;
    std::atomic<int> ran[7] = {};
    threads.run(tasks, [&](int64_t i) { ++ran[i]; });
    for (int64_t i = 0; i < 7; ++i) wrong += ran[i] != (i < tasks ? 1 : 0);
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, WorksAfterTheWorkersHaveGoneToSleep) {
  Threads threads(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int64_t> sum{0};
    threads.run(100, [&](int64_t i) { sum += i; });
    EXPECT_EQ(sum, 4950);
  }
}

TEST(Threads, AnExceptionOfATaskReachesTheCallerAndTheThreadsGoOn) {
  Threads threads(2);
  EXPECT_THROW(threads.run(10,
                           [](int64_t i) {
                             if (i == 7) throw std::runtime_error("seven");
                           }),
               std::runtime_error);
  std::atomic<int> count{0};
  threads.run(10, [&](int64_t) { ++count; });
  EXPECT_EQ(count, 10);
}

TEST(Threads, NoTasksAndOneThread) {
  Threads threads(1);
  threads.run(0, [](int64_t) { FAIL(); });
  int count = 0;
  threads.run(5, [&](int64_t) { ++count; });
  EXPECT_EQ(count, 5);
}

}  // namespace
}  // namespace tandem::device::threads_test
