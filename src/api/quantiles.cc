// Buckets of a geometric series.
#include "api/quantiles.h"

#include <algorithm>
#include <cmath>

namespace tandem::api {

namespace {
constexpr double smallest_ms = 0.01, growth = 1.05;
}

void Quantiles::add(double milliseconds) {
  const double bucket = std::floor(std::log(std::max(milliseconds, smallest_ms) / smallest_ms) / std::log(growth));
  ++counts_[static_cast<size_t>(std::clamp(bucket, 0.0, buckets - 1.0))];
  ++count_;
}

std::optional<double> Quantiles::at(double q) const {
  if (count_ == 0) return std::nullopt;
  const auto rank = static_cast<int64_t>(std::ceil(q * static_cast<double>(count_)));
  int64_t so_far = 0;
  int bucket = 0;
  while (bucket < buckets - 1 && (so_far += counts_[static_cast<size_t>(bucket)]) < rank) ++bucket;
  return smallest_ms * std::pow(growth, bucket + 0.5);
}

}  // namespace tandem::api
