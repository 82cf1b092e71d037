// The watchdog by itself and in the engine: a step that does not end, and idle time that is no fault.
#include "engine/watchdog.h"

#include <atomic>
#include <future>

#include "base/error.h"
#include "base/log.h"
#include "engine/batch_engine.h"
#include "engine/testing.h"

namespace tandem::engine {
namespace {

TEST(Watchdog, BarksOnceAfterTheLimit) {
  std::atomic<double> seconds{0};
  std::atomic<int> barks{0};
  std::promise<double> heard;
  Watchdog watchdog(
      0.02, [&] { return seconds.load(); },
      [&](double s) {
        if (++barks == 1) heard.set_value(s);
      });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(barks, 0);
  seconds = 0.5;
  EXPECT_EQ(heard.get_future().get(), 0.5);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(barks, 1);
}

TEST(Watchdog, EndsAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  {
    const Watchdog watchdog(
        1000, [] { return 0.0; }, [](double) {});
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST(Watchdog, AStepThatDoesNotEndMakesTheEngineUnready) {
  set_log_level(LogLevel::error);
  FakeModel model({.slots = 2});
  std::promise<void> open, barked;
  std::atomic<bool> blocked{false};
  model.before_step = [&](FakeModel& m) {
    if (m.step_count == 3 && !blocked.exchange(true)) open.get_future().wait();
  };
  BatchEngineOptions options{.scheduler = options_for({.slots = 2}), .watchdog_s = 0.05, .on_stuck = {}};
  options.on_stuck = [&] { barked.set_value(); };
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
  EXPECT_FALSE(status.broken);
  EXPECT_NE(status.reason.find("no step has finished"), std::string::npos);
  EXPECT_GT(status.seconds_since_last_step, 0.04);
  const std::string dump = engine.describe();
  EXPECT_NE(dump.find("stuck-one"), std::string::npos) << dump;
  EXPECT_NE(dump.find("decoding"), std::string::npos) << dump;
  EXPECT_NE(dump.find("1 rows in 1 segments"), std::string::npos) << dump;
  EXPECT_THROW(engine.submit(greedy({1}, 1), collector.sink()), Error);
  open.set_value();
  EXPECT_EQ(collector.wait().reason, FinishReason::length);  // it did get on, too late to be trusted
  EXPECT_FALSE(engine.status().ready);
}

}  // namespace
}  // namespace tandem::engine
