// The CPU worker threads of a rank. A forward pass runs a hundred short parallel regions a token, so a region must
// start and end within a microsecond: workers spin for a moment before they sleep. (Boost.Asio's pool and OpenMP were
// looked at: the first needs tens of microseconds a region, the second cannot be checked by ThreadSanitizer.)
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem::device {

class Threads {
 public:
  // `count` threads take part in run(), the caller of run() included; 0 means one for each core.
  explicit Threads(int count = 0);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(0) … task(tasks − 1), each once, in any order and on any thread; returns when all are done. The first
  // exception of a task is thrown again here. Only one thread may call run() at a time; tasks must not call it.
  template <typename Task>
  void run(int64_t tasks, const Task& task) {
    if (tasks == 1 || workers_.empty()) {
      for (int64_t i = 0; i < tasks; ++i) task(i);
      return;
    }
    run_job(
        tasks, [](const void* context, int64_t index) { (*static_cast<const Task*>(context))(index); }, &task);
  }

 private:
  using Call = void (*)(const void*, int64_t);

  void run_job(int64_t tasks, Call call, const void* context);
  void work();
  // Takes tasks of job `generation` until none is left; false if that job is no longer the current one.
  void take_tasks(uint64_t generation);

  // The ticket holds the job's generation (upper 32 bits) and its next task (lower 32 bits), so taking a task of a job
  // that has ended is impossible. The fields below belong to the generation in the ticket.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int64_t> tasks_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<int64_t> done_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;
};

}  // namespace tandem::device
