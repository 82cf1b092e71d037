// Looks ten times within the limit, or once a second if that is more: idle costs nothing.
#include "engine/watchdog.h"

#include <algorithm>
#include <utility>

namespace tandem::engine {
namespace {

constexpr double fewest_looks = 10;

}  // namespace

StuckTime::Change StuckTime::look(const Progress& seen, double elapsed_s) {
  const bool progress = !seen.busy || seen.mark != mark_;
  mark_ = seen.mark;
  if (progress) {
    counted_s_ = 0;
    return std::exchange(is_stuck_, false) ? Change::recovered : Change::none;
  }
  counted_s_ += std::clamp(elapsed_s, 0.0, limit_s_ / fewest_looks);
  constexpr double rounding = 1 - 1e-9;  // ten tenths need not be one
  if (is_stuck_ || counted_s_ < limit_s_ * rounding) return Change::none;
  is_stuck_ = true;
  return Change::stuck;
}

Watchdog::Watchdog(double limit_s, Actions actions)
    : limit_(limit_s), actions_(std::move(actions)), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Watchdog::watch() {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  const Seconds between = std::clamp(limit_ / fewest_looks, Seconds(0.001), Seconds(1));
  StuckTime time(limit_.count());
  Clock::time_point before = Clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, between, [this] { return stopping_; })) {
    lock.unlock();
    const Clock::time_point now = Clock::now();
    const StuckTime::Change change = time.look(actions_.look(), Seconds(now - before).count());
    before = now;
    if (change == StuckTime::Change::stuck) actions_.on_stuck();
    if (change == StuckTime::Change::recovered) actions_.on_recovered();
    lock.lock();
  }
}

}  // namespace tandem::engine
