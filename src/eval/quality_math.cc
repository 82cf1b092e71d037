// Plain sums in ascending order: a vocabulary's worth of float64 rounding is far below what is measured.
#include "eval/quality_math.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem::eval {
namespace {

double sum_of_squares(std::span<const double> values, double mean) {
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return sum;
}

double percentile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

bool normalise(std::span<const float> logits, LogitRow& row) {
  row.log_p.resize(logits.size());
  row.p.resize(logits.size());
  row.best = 0;
  for (size_t v = 0; v < logits.size(); ++v) {
    if (!std::isfinite(logits[v])) return false;
    if (logits[v] > logits[static_cast<size_t>(row.best)]) row.best = static_cast<int32_t>(v);
  }
  const double max = logits[static_cast<size_t>(row.best)];
  double sum = 0;
  for (size_t v = 0; v < logits.size(); ++v) sum += row.p[v] = std::exp(static_cast<double>(logits[v]) - max);
  const double log_sum = std::log(sum);
  for (size_t v = 0; v < logits.size(); ++v) {
    row.log_p[v] = (static_cast<double>(logits[v]) - max) - log_sum;  // exact however large max is
    row.p[v] /= sum;
  }
  return true;
}

double kl_divergence(const LogitRow& teacher, const LogitRow& student) {
  double sum = 0;
  for (size_t v = 0; v < teacher.p.size(); ++v) sum += teacher.p[v] * (teacher.log_p[v] - student.log_p[v]);
  return sum;
}

Distribution distribution_of(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  Distribution d;
  d.count = std::ssize(sorted);
  d.mean = mean_of(values);
  if (d.count > 1) d.deviation = std::sqrt(sum_of_squares(values, d.mean) / static_cast<double>(d.count - 1));
  d.p50 = percentile(sorted, 0.50);
  d.p95 = percentile(sorted, 0.95);
  d.p99 = percentile(sorted, 0.99);
  d.cvar95 = mean_of(std::span(sorted).subspan(static_cast<size_t>(d.count * 95 / 100)));
  d.max = sorted.back();
  return d;
}

std::optional<double> clustered_error(std::span<const double> values, std::span<const int64_t> counts) {
  if (counts.size() < 2) return std::nullopt;
  const double mean = mean_of(values), clusters = static_cast<double>(counts.size());
  double squares = 0;
  size_t first = 0;
  for (const int64_t count : counts) {
    double excess = 0;
    for (const double value : values.subspan(first, static_cast<size_t>(count))) excess += value - mean;
    squares += excess * excess;
    first += static_cast<size_t>(count);
  }
  return std::sqrt(clusters / (clusters - 1) * squares) / static_cast<double>(values.size());
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double population_deviation(std::span<const double> values) {
  return std::sqrt(sum_of_squares(values, mean_of(values)) / static_cast<double>(values.size()));
}

}  // namespace tandem::eval
