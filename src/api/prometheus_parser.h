// A strict reader of the text that /metrics answers with, for tests: what it accepts, Prometheus does too. Included by
// tests only.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::api {

class ParsedMetrics {
 public:
  using LabelMap = std::map<std::string, std::string>;

  // Throws std::runtime_error naming the line for anything that is not the format: unknown or repeated families,
  // samples outside their family, repeated label sets, wrong escapes or numbers, histograms that do not add up.
  explicit ParsedMetrics(std::string_view text) {
    if (!text.ends_with('\n')) fail("no line end at the end");
    while (!text.empty()) {
      line_ = text.substr(0, text.find('\n'));
      text.remove_prefix(line_.size() + 1);
      if (line_.starts_with("# HELP ")) {
        begin_family();
      } else if (line_.starts_with("# TYPE ")) {
        set_type();
      } else {
        read_sample();
      }
    }
    check_histograms();
  }

  const std::map<std::string, std::string>& types() const { return types_; }  // of each family
  size_t samples() const { return values_.size(); }
  // The sample whose labels hold all of `labels`; throws unless there is exactly one.
  double value(const std::string& name, const LabelMap& labels = {}) const {
    const double* found = nullptr;
    for (const auto& [key, value] : values_) {
      if (key.first != name || !holds(key.second, labels)) continue;
      if (found) throw std::runtime_error("several samples of " + name);
      found = &value;
    }
    if (!found) throw std::runtime_error("no sample of " + name);
    return *found;
  }
  double sum(const std::string& name, const LabelMap& labels = {}) const {
    double total = 0;
    for (const auto& [key, value] : values_) {
      if (key.first == name && holds(key.second, labels)) total += value;
    }
    return total;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw std::runtime_error(what + ": " + std::string(line_)); }

  static bool holds(const LabelMap& all, const LabelMap& wanted) {
    return std::all_of(wanted.begin(), wanted.end(), [&](const auto& label) {
      const auto found = all.find(label.first);
      return found != all.end() && found->second == label.second;
    });
  }

  // Takes a name of [a-zA-Z_:][a-zA-Z0-9_:]* off the front of `rest` (label names: without colons).
  std::string take_name(std::string_view& rest, bool colons) const {
    size_t size = 0;
    const auto fits = [&](char c) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colons && c == ':');
      return letter || (size > 0 && c >= '0' && c <= '9');
    };
    while (size < rest.size() && fits(rest[size])) ++size;
    if (size == 0) fail("no name");
    std::string name(rest.substr(0, size));
    rest.remove_prefix(size);
    return name;
  }
  void expect(std::string_view& rest, char c) const {
    if (!rest.starts_with(c)) fail(std::string("expected '") + c + "'");
    rest.remove_prefix(1);
  }

  void begin_family() {
    std::string_view rest = line_.substr(7);
    family_ = take_name(rest, true);
    expect(rest, ' ');
    for (size_t i = 0; i < rest.size(); ++i) {
      if (rest[i] != '\\') continue;
      if (++i == rest.size() || (rest[i] != '\\' && rest[i] != 'n')) fail("wrong escape in the help");
    }
    if (!types_.emplace(family_, "").second) fail("a family that was there before");
  }
  void set_type() {
    std::string_view rest = line_.substr(7);
    if (take_name(rest, true) != family_ || !types_[family_].empty()) fail("TYPE does not follow its HELP");
    expect(rest, ' ');
    if (rest != "counter" && rest != "gauge" && rest != "histogram") fail("unknown type");
    types_[family_] = rest;
  }

  void read_sample() {
    std::string_view rest = line_;
    const std::string name = take_name(rest, true);
    LabelMap labels;
    if (rest.starts_with('{')) {
      rest.remove_prefix(1);
      while (true) {
        const std::string label = take_name(rest, false);
        expect(rest, '=');
        if (!labels.emplace(label, take_label_value(rest)).second) fail("a label twice");
        if (!rest.starts_with(',')) break;
        rest.remove_prefix(1);
      }
      expect(rest, '}');
    }
    expect(rest, ' ');
    check_family(name, labels);
    if (!values_.emplace(std::pair(name, labels), number(rest)).second) fail("a sample twice");
    if (types_[family_] == "counter" && !(values_[{name, labels}] >= 0)) fail("a negative counter");
  }
  std::string take_label_value(std::string_view& rest) const {
    expect(rest, '"');
    std::string value;
    while (!rest.empty() && rest.front() != '"') {
      if (rest.front() != '\\') {
        value += rest.front();
      } else {
        rest.remove_prefix(1);
        if (rest.empty() || std::string_view("\\\"n").find(rest.front()) == std::string_view::npos)
          fail("wrong escape");
        value += rest.front() == 'n' ? '\n' : rest.front();
      }
      rest.remove_prefix(1);
    }
    expect(rest, '"');
    return value;
  }
  double number(std::string_view text) const {
    size_t used = 0;
    const std::string copy(text);
    const double value = std::stod(copy, &used);  // takes "+Inf" and "NaN"
    if (used != copy.size() || copy.empty() || copy.front() == ' ') fail("not a number");
    return value;
  }
  void check_family(const std::string& name, const LabelMap& labels) {
    const std::string& type = types_[family_];
    if (type.empty()) fail("a sample before its TYPE");
    if (type != "histogram") {
      if (name != family_) fail("a sample of another family");
      return;
    }
    const bool is_bucket = name == family_ + "_bucket";
    if (!is_bucket && name != family_ + "_sum" && name != family_ + "_count") fail("no sample of this histogram");
    if (is_bucket != (labels.count("le") == 1)) fail("le belongs to buckets");
    if (!is_bucket) return;
    LabelMap series = labels;
    series.erase("le");
    buckets_[{family_, series}].push_back(labels.at("le"));
  }

  void check_histograms() {
    for (const auto& [key, bounds] : buckets_) {
      line_ = key.first;
      double last_bound = -INFINITY, last_count = 0;
      for (const std::string& bound : bounds) {
        LabelMap labels = key.second;
        labels["le"] = bound;
        const double count = values_.at({key.first + "_bucket", labels});
        if (!(number(bound) > last_bound)) fail("bounds do not ascend");
        if (count < last_count) fail("bucket counts fall");
        last_bound = number(bound);
        last_count = count;
      }
      if (bounds.back() != "+Inf") fail("no +Inf bucket");
      if (values_.at({key.first + "_count", key.second}) != last_count) fail("count is not that of the last bucket");
      (void)values_.at({key.first + "_sum", key.second});
    }
  }

  std::string_view line_;
  std::string family_;
  std::map<std::string, std::string> types_;
  std::map<std::pair<std::string, LabelMap>, double> values_;
  std::map<std::pair<std::string, LabelMap>, std::vector<std::string>> buckets_;
};

}  // namespace tandem::api
