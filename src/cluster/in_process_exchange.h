// Ranks that are threads of one process exchange their values through memory that they share: everybody writes a piece,
// everybody waits for all, everybody reads all. For the CPU, and for tests of everything above.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "device/exchange.h"

namespace tandem::cluster {

// What the ranks share. A rank that cannot go on calls fail(); then every rank that waits, or comes later, gets an
// Error(internal) at once.
class InProcessHub {
 public:
  // `max_values`: what a rank gives at most at a time.
  InProcessHub(int ranks, int64_t max_values);
  static int64_t bytes_of(int ranks, int64_t max_values) { return 2 * ranks * max_values * 4; }

  int ranks() const { return ranks_; }
  // The first rank that fails is remembered.
  void fail(int rank) noexcept;
  int failed_rank() const { return failed_.load(); }  // −1: none

  void all_gather(int rank, std::span<const float> mine, std::span<float> all);
  // The same of one value of any kind, at most max_values · 4 bytes: all has ranks() of them.
  template <typename T>
  void all_gather_value(int rank, const T& mine, std::span<T> all) {
    static_assert(std::is_trivially_copyable_v<T>);
    gather(rank, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(all));
  }

  // Of one rank since the start: calls, and bytes that it got from others.
  int64_t exchanges() const { return exchanges_.load(std::memory_order_relaxed); }
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  void gather(int rank, std::span<const std::byte> mine, std::span<std::byte> all);
  // Waits until all ranks are here. What they wrote before is seen after.
  void meet();
  void throw_if_failed() const;

  // Exchanges use two buffers in turn. A rank that writes one again has met all others since, and they had read it by
  // then: one meeting an exchange is enough.
  struct Given {
    std::vector<std::byte> bytes;  // [ranks, max_bytes_]
    std::vector<size_t> sizes;     // [ranks]
  };

  int ranks_;
  int64_t max_bytes_;
  std::array<Given, 2> given_;
  std::vector<size_t> turn_;  // [ranks] the buffer of the rank's next exchange
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
