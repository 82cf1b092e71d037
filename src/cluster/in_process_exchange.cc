// Two meetings an exchange: at the first everybody's values are there, at the second everybody has copied them.
#include "cluster/in_process_exchange.h"

#include <fmt/core.h>

#include <cstring>

#include "base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem::cluster {
namespace {

constexpr int spins_before_sleep = 2000;  // some 50 µs: ranks that compute the same arrive together

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

InProcessHub::InProcessHub(int ranks) : given_(static_cast<size_t>(ranks)) {}

void InProcessHub::fail(int rank) noexcept {
  int none = -1;
  failed_.compare_exchange_strong(none, rank);
  meetings_.fetch_add(1);  // whoever waits looks again
  meetings_.notify_all();
}

void InProcessHub::throw_if_failed() const {
  const int failed = failed_rank();
  if (failed >= 0)
    throw Error(ErrorCode::internal, "exchange between ranks", fmt::format("rank {} has failed", failed));
}

void InProcessHub::meet() {
  const uint32_t meeting = meetings_.load();
  throw_if_failed();
  if (arrived_.fetch_add(1) + 1 == ranks()) {
    arrived_.store(0);
    meetings_.fetch_add(1);
    if (sleepers_.load() > 0) meetings_.notify_all();
  } else {
    for (int i = 0; meetings_.load(std::memory_order_acquire) == meeting && i < spins_before_sleep; ++i) relax();
    while (meetings_.load() == meeting) {
      sleepers_.fetch_add(1);
      meetings_.wait(meeting);
      sleepers_.fetch_sub(1);
    }
  }
  throw_if_failed();
}

void InProcessHub::all_gather(int rank, std::span<const float> mine, std::span<float> all) {
  if (all.size() != mine.size() * given_.size())
    throw Error(ErrorCode::internal, "exchange between ranks", fmt::format("room for {} values", all.size()),
                fmt::format("{} of {} ranks", mine.size(), ranks()));
  given_[static_cast<size_t>(rank)] = mine;
  meet();
  for (size_t other = 0; other < given_.size(); ++other) {
    const std::span<const float> values = given_[other];
    if (values.size() != mine.size())
      throw Error(ErrorCode::internal, "exchange between ranks",
                  fmt::format("rank {} gave {} values", other, values.size()), fmt::format("{}", mine.size()));
    float* to = all.data() + other * mine.size();
    if (to != values.data() && !values.empty()) std::memcpy(to, values.data(), values.size_bytes());
  }
  if (rank == 0) {
    exchanges_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(static_cast<int64_t>((given_.size() - 1) * mine.size_bytes()), std::memory_order_relaxed);
  }
  meet();
}

}  // namespace tandem::cluster
