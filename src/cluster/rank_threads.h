// Ranks that are threads of one process run the same job together. Rank 0 runs on the caller's thread, every other rank
// on a thread of its own that waits for work.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "cluster/in_process_exchange.h"

namespace tandem::cluster {

class RankThreads {
 public:
  // `job` runs on each rank's thread with the rank's number; what it throws fails the hub. The hub and what the job
  // uses must outlive the threads.
  RankThreads(InProcessHub& hub, std::function<void(int)> job);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // The job on all ranks; what the caller wrote before is seen by them, and what they wrote by the caller after. Throws
  // what the first rank to fail threw, once all ranks have stopped. Their states may differ then, so from there on
  // every call throws Error(internal).
  void run();

 private:
  void serve(int rank);
  void run_rank(int rank) noexcept;

  InProcessHub& hub_;
  const std::function<void(int)> job_;
  std::vector<std::exception_ptr> failures_;  // [ranks]
  bool broken_ = false;                       // used by the caller's thread only

  std::mutex mutex_;  // of everything below
  std::condition_variable changed_;
  uint64_t jobs_ = 0;  // given out so far
  int running_ = 0;    // ranks that have not finished the last one
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // of ranks 1 …
};

}  // namespace tandem::cluster
