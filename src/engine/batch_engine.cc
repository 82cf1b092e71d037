// inbox → schedule → run → complete, until told to stop.
#include "engine/batch_engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace tandem::engine {
namespace {

constexpr const char* stuck_reason = "no step has finished for a long time";

}  // namespace

void check_options(const BatchEngineOptions& options) {
  check_options(options.scheduler);
  if (!(options.watchdog_s >= 0 && options.watchdog_s <= 1e6))
    throw Error(ErrorCode::usage, "--watchdog-s", fmt::format("{}", options.watchdog_s), "0 (off) to 1000000 seconds");
}

BatchEngine::BatchEngine(StepRunner& runner, const BatchEngineOptions& options, draft::Drafter* drafter)
    : runner_(runner),
      options_(options),
      ready_(runner.counts()),
      scheduler_(options.scheduler, drafter),
      progress_(now()) {
  check_options(options);
  const auto slots = static_cast<size_t>(options.scheduler.capacity.slots);
  snapshot_.streams.reserve(slots);
  cancels_.reserve(slots);
  cancel_inbox_.reserve(slots);
  status_ = scheduler_.status();
  status_.runner = runner.counts();
  if (options.watchdog_s > 0)
    watchdog_ =
        std::make_unique<Watchdog>(options.watchdog_s, Watchdog::Actions{.look = [this] { return progress(); },
                                                                         .on_stuck = [this] { set_stuck(); },
                                                                         .on_recovered = [this] { clear_stuck(); }});
  thread_ = std::thread([this] { loop(); });
}

BatchEngine::~BatchEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  watchdog_.reset();
}

void BatchEngine::refuse_if_closed() const {
  if (!broken_.empty()) throw Error(ErrorCode::resource, "engine", "broken: " + broken_, "a restart of the program");
  if (is_stuck_) throw Error(ErrorCode::resource, "engine", stuck_reason, "one to finish, or a restart of the program");
  if (stopping_ || !admits_) throw Error(ErrorCode::resource, "engine", "stopping");
}

uint64_t BatchEngine::submit(Request request, Sink sink) {
  auto job = scheduler_.make_job(std::move(request), std::move(sink), now());
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    refuse_if_closed();
    scheduler_.check_queue(scheduler_.running() + scheduler_.waiting() + std::ssize(inbox_));
    number = job->number = next_number_++;
    inbox_.push_back(std::move(job));
  }
  wake_.notify_one();
  return number;
}

void BatchEngine::cancel(uint64_t number) {
  {
    const std::lock_guard lock(mutex_);
    if (number == 0 || number >= next_number_) return;
    cancel_inbox_.push_back(number);
  }
  wake_.notify_one();
}

void BatchEngine::stop_admitting() {
  const std::lock_guard lock(mutex_);
  admits_ = false;
}

Status BatchEngine::status() const {
  const std::lock_guard lock(mutex_);
  Status status = status_;
  status.running = scheduler_.running();
  status.waiting = scheduler_.waiting() + std::ssize(inbox_);
  status.broken = !broken_.empty();
  status.stuck = is_stuck_;
  if (status.broken)
    status.reason = broken_;
  else if (is_stuck_)
    status.reason = stuck_reason;
  else if (stopping_ || !admits_)
    status.reason = "stopping";
  status.ready = status.reason.empty();
  status.seconds_since_last_step = std::chrono::duration<double>(now() - progress_).count();
  return status;
}

std::string BatchEngine::describe() const {
  const std::lock_guard lock(mutex_);
  return snapshot_.text();
}

void BatchEngine::loop() {
  bool idle = true;
  while (true) {
    try {
      if (!take_inbox(idle)) break;
      idle = !run_step();
    } catch (const std::exception& e) {
      break_down(e.what());
      idle = true;
    } catch (...) {
      break_down("an unknown exception");
      idle = true;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    for (auto& job : inbox_) scheduler_.enqueue(std::move(job));
    inbox_.clear();
  }
  scheduler_.end_all(FinishReason::cancelled, {}, now());
}

bool BatchEngine::take_inbox(bool idle) {
  {
    std::unique_lock lock(mutex_);
    if (idle) {
      wake_.wait(lock, [this] { return stopping_ || (broken_.empty() && !(inbox_.empty() && cancel_inbox_.empty())); });
      progress_ = now();  // a long idle time is not a stuck step
    }
    if (stopping_) return false;
    for (auto& job : inbox_) scheduler_.enqueue(std::move(job));
    inbox_.clear();
    cancels_.swap(cancel_inbox_);
  }
  for (const uint64_t number : cancels_) scheduler_.cancel(number, now());
  cancels_.clear();
  return true;
}

bool BatchEngine::run_step() {
  const forward::Step* step = scheduler_.schedule(now());
  publish(step != nullptr);
  if (step == nullptr) return false;
  runner_.run(*step);
  check_counts();
  if (options_.check_numerics) check_numerics(*step);
  scheduler_.complete(runner_.logits(), runner_.sampled(), now());
  const std::lock_guard lock(mutex_);
  progress_ = now();
  ++status_.steps;
  return true;
}

// Promise 5 (design.md 1). A user's server goes on, with the metrics saying so; while we develop it is an error.
void BatchEngine::check_counts() const {
#ifndef NDEBUG
  const forward::RunnerCounts counts = runner_.counts();
  if (counts.allocations != ready_.allocations || counts.kernels_loaded != ready_.kernels_loaded)
    throw Error(ErrorCode::internal, "a step on the GPU",
                fmt::format("{} allocations and {} loaded kernels", counts.allocations - ready_.allocations,
                            counts.kernels_loaded - ready_.kernels_loaded),
                "none after ready");
#endif
}

void BatchEngine::check_numerics(const forward::Step& step) const {
  const std::string where = runner_.not_finite(step);
  if (!where.empty()) throw Error(ErrorCode::internal, "--check-numerics", where, "finite values");
}

void BatchEngine::publish(bool busy) {
  Status status = scheduler_.status();
  status.runner = runner_.counts();
  const std::lock_guard lock(mutex_);
  status_ = std::move(status);
  busy_ = busy;
  scheduler_.describe(snapshot_, now());
}

// Whoever asks after the first `finished` must find the engine broken already.
void BatchEngine::break_down(const std::string& reason) {
  const std::string why = reason.empty() ? "a step failed" : reason;
  {
    const std::lock_guard lock(mutex_);
    broken_ = why;
    busy_ = false;
    for (auto& job : inbox_) scheduler_.enqueue(std::move(job));
    inbox_.clear();
  }
  log(LogLevel::error, "engine broken: {}", why);
  scheduler_.end_all(FinishReason::error, "the engine failed: " + why, now());
}

Progress BatchEngine::progress() const {
  const std::lock_guard lock(mutex_);
  return {.busy = busy_, .mark = progress_.count()};
}

// The dump is for people; what is done about it does not wait for it, nor depend on it.
void BatchEngine::set_stuck() {
  try {
    std::string dump;
    double seconds = 0;
    {
      const std::lock_guard lock(mutex_);
      is_stuck_ = true;
      seconds = std::chrono::duration<double>(now() - progress_).count();
      dump = snapshot_.text();
    }
    log(LogLevel::error, "watchdog: no step has finished for {:.1f} s; {}", seconds, dump);
  } catch (...) {  // no memory for it, perhaps the reason of all
  }
  if (options_.on_stuck) options_.on_stuck();
}

void BatchEngine::clear_stuck() {
  {
    const std::lock_guard lock(mutex_);
    is_stuck_ = false;
  }
  log(LogLevel::warning, "watchdog: steps finish again; requests are taken again");
}

}  // namespace tandem::engine
