// The threads of ranks, and what becomes of a rank that fails.
#include "cluster/rank_threads.h"

#include <utility>

#include "base/error.h"

namespace tandem::cluster {

RankThreads::RankThreads(InProcessHub& hub, std::function<void(int)> job)
    : hub_(hub), job_(std::move(job)), failures_(static_cast<size_t>(hub.ranks())) {
  for (int rank = 1; rank < hub.ranks(); ++rank) threads_.emplace_back([this, rank] { serve(rank); });
}

RankThreads::~RankThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// The life of a rank's thread.
void RankThreads::serve(int rank) {
  uint64_t done = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || jobs_ != done; });
      if (stopping_) return;
      done = jobs_;
    }
    run_rank(rank);
    {
      const std::lock_guard lock(mutex_);
      --running_;
    }
    changed_.notify_all();
  }
}

// The job on one rank; what it throws is kept.
void RankThreads::run_rank(int rank) noexcept {
  try {
    job_(rank);
  } catch (...) {
    failures_[static_cast<size_t>(rank)] = std::current_exception();
    hub_.fail(rank);
  }
}

void RankThreads::run() {
  if (broken_) throw Error(ErrorCode::internal, "ranks", "a rank has failed in an earlier step");
  {
    const std::lock_guard lock(mutex_);
    ++jobs_;
    running_ = hub_.ranks() - 1;
  }
  changed_.notify_all();
  run_rank(0);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return running_ == 0; });
  }
  if (hub_.failed_rank() < 0) return;
  broken_ = true;  // the first to fail knows why; the others only that it failed
  std::rethrow_exception(failures_[static_cast<size_t>(hub_.failed_rank())]);
}

}  // namespace tandem::cluster
