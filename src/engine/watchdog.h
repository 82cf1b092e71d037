// A thread that notices when the engine stops getting anywhere: busy, and no step has finished for a long time. The
// engine itself cannot say so, because it is the one that hangs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace tandem::engine {

class Watchdog {
 public:
  // `seconds_without_progress` says for how long the engine has been busy without finishing a step; 0 when idle.
  // `on_stuck` is called once, on the watchdog's thread, with that time when it exceeds `limit_s` > 0.
  Watchdog(double limit_s, std::function<double()> seconds_without_progress, std::function<void(double)> on_stuck);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch();

  const std::chrono::duration<double> limit_;
  const std::function<double()> seconds_without_progress_;
  const std::function<void(double)> on_stuck_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::engine
