// Workers that spin for a moment, then sleep until the next region.
#include "device/threads.h"

#include <algorithm>

#include "device/relax.h"

namespace tandem::device {
namespace {

constexpr int spins_before_sleep = 20000;  // about 100 µs to 1 ms: longer than the serial parts of a step
// The last task of a region takes less. A worker that takes longer lost its core to another program: perhaps it may
// have the one of the thread that waits for it.
constexpr int spins_before_yield = 2000;

uint64_t generation_of(uint64_t ticket) { return ticket >> 32; }
int64_t index_of(uint64_t ticket) { return static_cast<int64_t>(ticket & 0xffffffffu); }

}  // namespace

Threads::Threads(int count) {
  if (count <= 0) count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int i = 1; i < count; ++i) workers_.emplace_back([this] { work(); });
}

Threads::~Threads() {
  stopping_ = true;
  ticket_.fetch_add(uint64_t{1} << 32);
  ticket_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Threads::run_job(int64_t tasks, Call call, const void* context) {
  if (tasks <= 0) return;
  // Closed first: a worker that still holds the last job's ticket and already reads this job's number of tasks must
  // fail to take one. Release and acquire on tasks_ order the two.
  const uint64_t last = generation_of(ticket_.load(std::memory_order_relaxed));
  ticket_.store(last << 32 | 0xffffffffu);
  tasks_.store(tasks, std::memory_order_release);
  call_.store(call, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const uint64_t generation = (last + 1) & 0xffffffffu;
  ticket_.store(generation << 32);  // sequentially consistent with sleepers_: a worker sees the job or is woken
  if (sleepers_.load() > 0) ticket_.notify_all();
  take_tasks(generation);
  for (int i = 0; done_.load(std::memory_order_acquire) < tasks; ++i) {
    if (i < spins_before_yield) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
  if (failure_) {
    std::exception_ptr failure;
    std::swap(failure, failure_);
    std::rethrow_exception(failure);
  }
}

void Threads::take_tasks(uint64_t generation) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (generation_of(ticket) == generation) {
    // These are the current job's fields if the exchange below succeeds: the next job cannot be written before the task
    // taken here is done.
    const int64_t tasks = tasks_.load(std::memory_order_acquire);
    const Call call = call_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    if (index_of(ticket) >= tasks) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
    try {
      call(context, index_of(ticket));
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    done_.fetch_add(1, std::memory_order_acq_rel);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void Threads::work() {
  uint64_t seen = 0;
  while (true) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (int i = 0; generation_of(ticket) == seen && i < spins_before_sleep; ++i) {
      relax();
      ticket = ticket_.load(std::memory_order_acquire);
    }
    while (generation_of(ticket) == seen) {
      sleepers_.fetch_add(1);
      ticket_.wait(ticket);
      sleepers_.fetch_sub(1);
      ticket = ticket_.load();
    }
    if (stopping_) return;
    seen = generation_of(ticket);
    take_tasks(seen);
  }
}

}  // namespace tandem::device
