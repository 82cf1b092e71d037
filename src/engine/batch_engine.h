// The engine: one thread that runs the scheduler's steps, an inbox before it, and what others may see of it. Requests
// come in and cancellations come in through the inbox, and are looked at between two steps.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/scheduler.h"
#include "engine/snapshot.h"
#include "engine/step_runner.h"
#include "engine/watchdog.h"

namespace tandem::engine {

struct BatchEngineOptions {
  SchedulerOptions scheduler;
  double watchdog_s = 0;           // no step finished for so long while busy: the engine is stuck; 0: no watchdog
  bool check_numerics = false;     // --check-numerics: a NaN or an infinity in states or hidden rows breaks the engine
  std::function<void()> on_stuck;  // called on the watchdog's thread after its dump, each time; may be empty
};

// Throws Error(usage) naming the setting that is out of its range.
void check_options(const BatchEngineOptions& options);

class BatchEngine : public Engine {
 public:
  // `runner` and `drafter` (may be null) must outlive the engine; they are called on the engine's thread only. Throws
  // Error(usage) naming a setting.
  BatchEngine(StepRunner& runner, const BatchEngineOptions& options, draft::Drafter* drafter = nullptr);
  // Every request that has not ended gets `finished` with reason cancelled.
  ~BatchEngine() override;

  uint64_t submit(Request request, Sink sink) override;
  void cancel(uint64_t number) override;
  Status status() const override;

  // From now on submit() throws; what was submitted goes on to its end.
  void stop_admitting();
  // What runs now, for people.
  std::string describe() const;

 private:
  using Clock = std::chrono::steady_clock;
  static Time now() { return Clock::now().time_since_epoch(); }

  void loop();
  // Hands the inbox to the scheduler; waits for it to fill when `idle`. False: stop.
  bool take_inbox(bool idle);
  bool run_step();  // false: there was nothing to do
  void check_counts() const;
  void check_numerics(const forward::Step& step) const;
  void publish(bool busy);
  void break_down(const std::string& reason);
  void refuse_if_closed() const;  // with mutex_ held
  Progress progress() const;
  void set_stuck();
  void clear_stuck();

  StepRunner& runner_;
  const BatchEngineOptions options_;
  const forward::RunnerCounts ready_;  // as the first request finds it
  Scheduler scheduler_;                // the engine thread's, but for what it says any thread may call
  std::vector<uint64_t> cancels_;      // taken from the inbox

  mutable std::mutex mutex_;  // guards everything below; never held while a sink or the model runs
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Job>> inbox_;
  std::vector<uint64_t> cancel_inbox_;
  uint64_t next_number_ = 1;
  bool stopping_ = false, admits_ = true;
  std::string broken_;  // why; empty: not so
  bool is_stuck_ = false;
  Status status_;  // as of the last step
  Snapshot snapshot_;
  bool busy_ = false;
  Time progress_{0};  // when the last step ended or the engine last became busy

  std::unique_ptr<Watchdog> watchdog_;
  std::thread thread_;  // last: starts when all else is ready
};

}  // namespace tandem::engine
