// Exchanges in shared memory, and the meeting that they wait at.
#include "cluster/in_process_exchange.h"

#include <fmt/core.h>

#include <cstring>

#include "base/error.h"
#include "device/relax.h"

namespace tandem::cluster {
namespace {

constexpr int spins_before_sleep = 2000;  // some 50 µs: ranks that compute the same arrive together

}  // namespace

InProcessHub::InProcessHub(int ranks, int64_t max_values)
    : ranks_(ranks), max_bytes_(4 * max_values), turn_(static_cast<size_t>(ranks)) {
  for (Given& given : given_) {
    given.bytes.resize(static_cast<size_t>(ranks * max_bytes_));
    given.sizes.resize(static_cast<size_t>(ranks));
  }
}

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
    for (int i = 0; meetings_.load(std::memory_order_acquire) == meeting && i < spins_before_sleep; ++i)
      device::relax();
    while (meetings_.load() == meeting) {
      sleepers_.fetch_add(1);
      meetings_.wait(meeting);
      sleepers_.fetch_sub(1);
    }
  }
  throw_if_failed();
}

void InProcessHub::all_gather(int rank, std::span<const float> mine, std::span<float> all) {
  gather(rank, std::as_bytes(mine), std::as_writable_bytes(all));
}

void InProcessHub::gather(int rank, std::span<const std::byte> mine, std::span<std::byte> all) {
  const auto own = static_cast<size_t>(rank), count = static_cast<size_t>(ranks_),
             most = static_cast<size_t>(max_bytes_);
  if (all.size() != mine.size() * count || mine.size() > most) {
    throw Error(ErrorCode::internal, "exchange between ranks",
                fmt::format("{} bytes into room for {}", mine.size(), all.size()),
                fmt::format("at most {} bytes of each of {} ranks", most, count));
  }
  if (mine.empty()) return;
  Given& given = given_[turn_[own]];
  turn_[own] ^= 1;
  std::memcpy(given.bytes.data() + own * most, mine.data(), mine.size());
  given.sizes[own] = mine.size();
  meet();
  for (size_t other = 0; other < count; ++other) {
    if (given.sizes[other] != mine.size()) {
      throw Error(ErrorCode::internal, "exchange between ranks",
                  fmt::format("rank {} gave {} bytes", other, given.sizes[other]), fmt::format("{}", mine.size()));
    }
    std::byte* to = all.data() + other * mine.size();
    if (to != mine.data()) std::memcpy(to, given.bytes.data() + other * most, mine.size());
  }
  if (rank == 0) {
    exchanges_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(static_cast<int64_t>((count - 1) * mine.size()), std::memory_order_relaxed);
  }
}

}  // namespace tandem::cluster
