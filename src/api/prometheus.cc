// The text format: families, label sets, numbers.
#include "api/prometheus.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace tandem::api {

namespace {

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || (quotes && c == '"')) out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  // Counts stay digits as long as a double holds them exactly.
  if (value == std::floor(value) && std::abs(value) < 9e15) return fmt::format("{}", static_cast<int64_t>(value));
  return fmt::format("{}", value);
}

// Bounds as the Python client writes them ("1.0"), so that a query that names one finds it here too.
std::string bound_text(double bound) {
  const std::string text = number(bound);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::observe(double value) {
  if (std::isnan(value)) return;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<size_t>(bucket)];
  ++count_;
  sum_ += value;
}

std::vector<double> series_1_2_5(int64_t largest) {
  std::vector<double> bounds{1};
  for (int64_t power = 1;; power *= 10) {
    for (const int64_t factor : {2, 5, 10}) {
      if (power > largest / factor) return bounds;
      bounds.push_back(static_cast<double>(power * factor));
    }
  }
}

void PrometheusText::family(std::string_view name, Type type, std::string_view help) {
  constexpr const char* types[] = {"counter", "gauge", "histogram"};
  name_ = name;
  text_ +=
      fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escaped(help, false), name, types[static_cast<size_t>(type)]);
}

void PrometheusText::line(std::string_view suffix, const Labels& labels, std::string_view bound, double value) {
  text_ += name_;
  text_ += suffix;
  char separator = '{';
  const auto add = [&](std::string_view name, std::string_view label) {
    text_ += fmt::format("{}{}=\"{}\"", separator, name, escaped(label, true));
    separator = ',';
  };
  for (const auto& [name, label] : labels) add(name, label);
  if (!bound.empty()) add("le", bound);
  if (separator == ',') text_ += '}';
  text_ += fmt::format(" {}\n", number(value));
}

void PrometheusText::sample(const Labels& labels, double value) { line("", labels, {}, value); }

void PrometheusText::sample(const Labels& labels, const Histogram& histogram) {
  int64_t so_far = 0;
  for (size_t i = 0; i < histogram.bounds().size(); ++i) {
    so_far += histogram.counts()[i];
    line("_bucket", labels, bound_text(histogram.bounds()[i]), static_cast<double>(so_far));
  }
  line("_bucket", labels, "+Inf", static_cast<double>(histogram.count()));
  line("_sum", labels, {}, histogram.sum());
  line("_count", labels, {}, static_cast<double>(histogram.count()));
}

void PrometheusText::counter(std::string_view name, std::string_view help, const Labels& labels, double value) {
  family(name, Type::counter, help);
  sample(labels, value);
}

void PrometheusText::gauge(std::string_view name, std::string_view help, const Labels& labels, double value) {
  family(name, Type::gauge, help);
  sample(labels, value);
}

}  // namespace tandem::api
