// Quantiles of many durations in fixed memory, so that a reply of a million tokens needs no list of its gaps.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace tandem::api {

// Counts milliseconds in buckets that widen by 5 %, from 10 µs to about 20 minutes; what lies outside counts in the
// first or the last one. A quantile is the middle of its bucket, at most 2.5 % away from the true value.
class Quantiles {
 public:
  void add(double milliseconds);
  int64_t count() const { return count_; }
  // The value at rank ⌈q · count⌉, q in (0, 1]; empty when nothing was added.
  std::optional<double> at(double q) const;

 private:
  static constexpr int buckets = 384;
  std::array<uint32_t, buckets> counts_{};
  int64_t count_ = 0;
};

}  // namespace tandem::api
