// Metrics as Prometheus text (exposition format 0.0.4; spec/frontend.md D.12). By hand, because the library for it
// brings an HTTP server of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::api {

using Labels = std::vector<std::pair<std::string, std::string>>;  // name, value (any UTF-8)

// Counts of observed values by upper bounds; the bucket of everything (+Inf) is implied.
class Histogram {
 public:
  // `bounds` ascend strictly and are finite.
  explicit Histogram(std::vector<double> bounds);

  void observe(double value);  // NaN is not counted
  int64_t count() const { return count_; }
  double sum() const { return sum_; }
  std::span<const double> bounds() const { return bounds_; }
  std::span<const int64_t> counts() const { return counts_; }  // of each bucket alone, that of +Inf last

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  double sum_ = 0;
};

// Bounds 1, 2, 5, 10, 20, 50 … up to `largest` (at least the 1).
std::vector<double> series_1_2_5(int64_t largest);

class PrometheusText {
 public:
  enum class Type { counter, gauge, histogram };

  // Begins a family: its HELP and TYPE lines. Samples that follow belong to it. A name may come once.
  void family(std::string_view name, Type type, std::string_view help);
  // One sample of a counter or a gauge.
  void sample(const Labels& labels, double value);
  // The buckets, sum and count of a histogram.
  void sample(const Labels& labels, const Histogram& histogram);

  // A family of one sample.
  void counter(std::string_view name, std::string_view help, const Labels& labels, double value);
  void gauge(std::string_view name, std::string_view help, const Labels& labels, double value);

  const std::string& text() const { return text_; }

 private:
  void line(std::string_view suffix, const Labels& labels, std::string_view bound, double value);

  std::string text_, name_;
};

}  // namespace tandem::api
