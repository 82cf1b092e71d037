// The measures of spec/quantization.md 6.1: what two models say of one position, and statistics over positions. All in
// float64.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tandem::eval {

// The logits of one position, normalised: log p = z − lse(z), lse(z) = max + ln Σ exp(z − max), with max taken off
// first, so that nothing is lost when it is large.
struct LogitRow {
  std::vector<double> log_p, p;  // [vocab]
  int32_t best = 0;              // the largest logit; ties to the smaller id
};

// Overwrites `row` and keeps its memory. False, with `row` unfinished, if a logit is not finite.
[[nodiscard]] bool normalise(std::span<const float> logits, LogitRow& row);

// Σ_v p_v (log p_v − log q_v) in nats, of rows of one length. Exactly 0 for equal rows; rounding can leave a divergence
// of less than about 1e-15 below zero.
double kl_divergence(const LogitRow& teacher, const LogitRow& student);

// Over positions.
struct Distribution {
  int64_t count = 0;
  double mean = 0;
  double deviation = 0;              // with n − 1; 0 for one value
  double p50 = 0, p95 = 0, p99 = 0;  // linear between the two nearest order statistics
  double cvar95 = 0;                 // mean of the sorted values from index floor(0.95 n) on
  double max = 0;
};
Distribution distribution_of(std::span<const double> values);  // not empty

// Standard error of the mean of `values`, which belong to clusters one after another, counts[c] values each: positions
// of a window are correlated, windows are not. The linearised ratio estimator: with S_c the sum of cluster c, N values
// and M clusters, its square is M/(M − 1) · Σ_c (S_c − counts[c]·mean)² / N². None for a single cluster.
std::optional<double> clustered_error(std::span<const double> values, std::span<const int64_t> counts);

double mean_of(std::span<const double> values);               // not empty
double population_deviation(std::span<const double> values);  // with n; not empty

}  // namespace tandem::eval
