// A thread that notices when the engine stops getting anywhere: busy, and no step has finished for a long time. The
// engine itself cannot say so, because it is the one that hangs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace tandem::engine {

// What the watchdog sees of the engine when it looks.
struct Progress {
  bool busy = false;
  int64_t mark = 0;  // another one whenever a step has ended
};

// Adds up the time without progress from look to look. One look counts a tenth of the limit at most, so ten at least
// are needed: a process that was paused itself (SIGSTOP, a debugger, a suspended machine) looks once afterwards, and
// then the engine has had its chance.
class StuckTime {
 public:
  explicit StuckTime(double limit_s) : limit_s_(limit_s) {}

  enum class Change { none, stuck, recovered };
  // `elapsed_s`: since the look before.
  Change look(const Progress& seen, double elapsed_s);

 private:
  const double limit_s_;
  double counted_s_ = 0;
  int64_t mark_ = 0;
  bool is_stuck_ = false;
};

class Watchdog {
 public:
  struct Actions {  // called on the watchdog's thread; must not throw
    std::function<Progress()> look;
    std::function<void()> on_stuck;      // no progress for `limit_s`
    std::function<void()> on_recovered;  // then there was some after all
  };
  // limit_s > 0.
  Watchdog(double limit_s, Actions actions);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch();

  const std::chrono::duration<double> limit_;
  const Actions actions_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::engine
