// Ranks that are threads of one process exchange their values through this memory: nothing is sent, everybody copies
// from everybody. For the CPU, and for tests of everything above.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "device/exchange.h"

namespace tandem::cluster {

// What the ranks share. A rank that cannot go on calls fail(); then every rank that waits, or comes later, gets an
// Error(internal) at once.
class InProcessHub {
 public:
  explicit InProcessHub(int ranks);

  int ranks() const { return static_cast<int>(given_.size()); }
  // The first rank that fails is remembered.
  void fail(int rank) noexcept;
  int failed_rank() const { return failed_.load(); }  // −1: none

  void all_gather(int rank, std::span<const float> mine, std::span<float> all);

  // Of one rank since the start: calls, and bytes that it got from others.
  int64_t exchanges() const { return exchanges_.load(std::memory_order_relaxed); }
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  // Waits until all ranks are here. What they wrote before is seen after.
  void meet();
  void throw_if_failed() const;

  std::vector<std::span<const float>> given_;  // [ranks] during an exchange
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> meetings_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<int> failed_{-1};
  std::atomic<int64_t> exchanges_{0}, bytes_{0};
};

// One rank's end of the hub, which must outlive it.
class InProcessExchange final : public device::Exchange {
 public:
  InProcessExchange(InProcessHub& hub, int rank) : hub_(hub), rank_(rank) {}

  int rank() const override { return rank_; }
  int ranks() const override { return hub_.ranks(); }
  void all_gather(std::span<const float> mine, std::span<float> all) override { hub_.all_gather(rank_, mine, all); }

 private:
  InProcessHub& hub_;
  int rank_;
};

}  // namespace tandem::cluster
