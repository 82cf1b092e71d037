// The watchdog by itself and in the engine: a step that does not end, and idle time that is no fault.
#include "engine/watchdog.h"

#include <atomic>
#include <future>

#include "base/error.h"
#include "base/log.h"
#include "engine/batch_engine.h"
#include "engine/testing.h"

namespace tandem::engine::watchdog_test {
namespace {

using Change = StuckTime::Change;

Progress busy_at(int64_t mark) { return {.busy = true, .mark = mark}; }

// How many looks of `elapsed_s` a new mark gets before it counts as stuck; 0: more than 1000.
int looks_until_stuck(StuckTime& time, int64_t mark, double elapsed_s) {
  EXPECT_NE(time.look(busy_at(mark), elapsed_s), Change::stuck);
  for (int i = 1; i <= 1000; ++i)
    if (time.look(busy_at(mark), elapsed_s) == Change::stuck) return i;
  return 0;
}

TEST(StuckTime, TakesTheLimitAndAtLeastTenLooks) {
  for (const double limit : {0.05, 0.3, 1.0, 7.0, 300.0}) {
    StuckTime time(limit);
    EXPECT_EQ(looks_until_stuck(time, 1, limit / 10), 10) << limit;
    EXPECT_EQ(looks_until_stuck(time, 2, limit / 40), 40) << limit;
    EXPECT_EQ(looks_until_stuck(time, 3, limit * 1e6), 10) << limit;
    EXPECT_EQ(looks_until_stuck(time, 4, 0), 0) << limit;
    EXPECT_EQ(looks_until_stuck(time, 5, -limit), 0) << limit;  // a clock that went back
  }
}

// SIGSTOP for an hour, nine times within one step.
TEST(StuckTime, APauseOfTheProcessIsOneLook) {
  StuckTime time(1);
  for (int64_t step = 1; step < 20; ++step)
    for (int pause = 0; pause < 10; ++pause) EXPECT_EQ(time.look(busy_at(step), 3600), Change::none);
}

TEST(StuckTime, ProgressAndIdlenessStartAnew) {
  StuckTime time(1);
  for (int64_t step = 0; step < 100; ++step) EXPECT_EQ(time.look(busy_at(step / 9), 0.1), Change::none) << step;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(time.look({.busy = i % 9 != 0, .mark = 7}, 0.1), Change::none) << i;
}

TEST(StuckTime, ProgressEndsItOnce) {
  StuckTime time(1);
  for (const bool ends_idle : {false, true}) {
    const int64_t mark = ends_idle ? 3 : 1;
    EXPECT_EQ(looks_until_stuck(time, mark, 0.1), 10);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(time.look(busy_at(mark), 0.1), Change::none);  // said once
    EXPECT_EQ(time.look({.busy = !ends_idle, .mark = mark + 1}, 0.1), Change::recovered);
    EXPECT_EQ(time.look({.busy = !ends_idle, .mark = mark + 1}, 0.1), Change::none);
  }
}

TEST(Watchdog, CallsOnceForEachTime) {
  std::atomic<int64_t> mark{0};
  std::atomic<bool> busy{false};
  std::atomic<int> stuck{0}, recovered{0};
  Watchdog watchdog(0.02, {.look = [&] { return Progress{.busy = busy, .mark = mark}; },
                           .on_stuck = [&] { ++stuck; },
                           .on_recovered = [&] { ++recovered; }});
  const auto wait_for = [](const std::atomic<int>& count, int value) {
    for (int i = 0; i < 10'000 && count < value; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return count == value;
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_EQ(stuck, 0);
  busy = true;
  EXPECT_TRUE(wait_for(stuck, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_EQ(stuck, 1);
  EXPECT_EQ(recovered, 0);
  ++mark;
  EXPECT_TRUE(wait_for(recovered, 1));
  EXPECT_TRUE(wait_for(stuck, 2));
  busy = false;
  EXPECT_TRUE(wait_for(recovered, 2));
}

TEST(Watchdog, EndsAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  {
    const Watchdog watchdog(1000, {.look = [] { return Progress{}; }, .on_stuck = [] {}, .on_recovered = [] {}});
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST(Watchdog, AStepThatDoesNotEndMakesTheEngineUnreadyUntilItDoes) {
  set_log_level(LogLevel::error);
  FakeModel model({.slots = 2});
  std::promise<void> open, barked;
  std::atomic<bool> blocked{false};
  model.before_step = [&](FakeModel& m) {
    if (m.step_count == 3 && !blocked.exchange(true)) open.get_future().wait();
  };
  BatchEngineOptions options{.scheduler = options_for({.slots = 2}), .watchdog_s = 0.05, .on_stuck = {}};
  std::atomic<int> barks{0};
  options.on_stuck = [&] {
    if (++barks == 1) barked.set_value();
  };
  BatchEngine engine(model, options);
  std::this_thread::sleep_for(std::chrono::milliseconds(150));  // idle: nothing is stuck
  EXPECT_TRUE(engine.status().ready);
  Collector collector;
  auto request = greedy(some_prompt(6), 10);
  request.id = "stuck-one";
  engine.submit(request, collector.sink());
  barked.get_future().wait();
  const Status status = engine.status();
  EXPECT_FALSE(status.ready);
  EXPECT_TRUE(status.stuck);
  EXPECT_FALSE(status.broken);
  EXPECT_NE(status.reason.find("no step has finished"), std::string::npos);
  EXPECT_GT(status.seconds_since_last_step, 0.04);
  const std::string dump = engine.describe();
  EXPECT_NE(dump.find("stuck-one"), std::string::npos) << dump;
  EXPECT_NE(dump.find("decoding"), std::string::npos) << dump;
  EXPECT_NE(dump.find("1 rows in 1 segments"), std::string::npos) << dump;
  EXPECT_THROW(engine.submit(greedy({1}, 1), collector.sink()), Error);
  open.set_value();
  EXPECT_EQ(collector.wait().reason, FinishReason::length);
  for (int i = 0; i < 10'000 && !engine.status().ready; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(engine.status().ready);
  EXPECT_FALSE(engine.status().stuck);
  Collector later;
  engine.submit(greedy(some_prompt(6), 3), later.sink());
  EXPECT_EQ(later.wait().reason, FinishReason::length);
}

}  // namespace
}  // namespace tandem::engine::watchdog_test
