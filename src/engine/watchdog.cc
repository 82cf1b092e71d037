// Looks a few times within the limit, at most once a second: idle costs nothing.
#include "engine/watchdog.h"

#include <algorithm>
#include <utility>

namespace tandem::engine {

Watchdog::Watchdog(double limit_s, std::function<double()> seconds_without_progress,
                   std::function<void(double)> on_stuck)
    : limit_(limit_s),
      seconds_without_progress_(std::move(seconds_without_progress)),
      on_stuck_(std::move(on_stuck)),
      thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Watchdog::watch() {
  const std::chrono::duration<double> pause = std::max(limit_ / 8, std::chrono::duration<double>(0.001));
  const std::chrono::duration<double> between = std::min(pause, std::chrono::duration<double>(1.0));
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, between, [this] { return stopping_; })) {
    lock.unlock();
    const double seconds = seconds_without_progress_();
    const bool is_stuck = seconds > limit_.count();
    if (is_stuck) on_stuck_(seconds);
    lock.lock();
    if (is_stuck) return;
  }
}

}  // namespace tandem::engine
