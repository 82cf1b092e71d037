// Replays, medians, and the two forms of the report.
#include "timing.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::bench {

double Timing::median() const {
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

Bench::Bench(device::Gpu& gpu, int64_t lead_bytes, int samples, int64_t least)
    : least_launches(least),
      gpu_(gpu),
      lead_(gpu.allocate(lead_bytes, "memory that hides the host's queueing")),
      samples_(samples) {}

Timing Bench::replays(int64_t count, const std::function<void()>& one) const {
  one();  // warms caches; its time is not taken
  gpu_.synchronize();
  gpu_.fill(lead_.data(), 0, lead_.size());
  std::vector<int32_t> marks;
  one();
  marks.push_back(gpu_.mark());
  for (int i = 0; i < samples_; ++i) {
    one();
    marks.push_back(gpu_.mark());
  }
  gpu_.synchronize();
  Timing out;
  for (size_t i = 0; i + 1 < marks.size(); ++i)
    out.samples.push_back(gpu_.milliseconds(marks[i], marks[i + 1]) * 1000 / static_cast<double>(count));
  return out;
}

Timing Bench::graph(int64_t count, const std::function<void()>& queue) const {
  gpu_.begin_capture();
  queue();
  const device::Graph graph = gpu_.end_capture();
  return replays(count, [&] { gpu_.replay(graph); });
}

Timing Bench::queued(int64_t count, const std::function<void()>& queue) const { return replays(count, queue); }

double Bench::estimate(const std::function<void()>& queue) const {
  queue();
  const int32_t from = gpu_.mark();
  queue();
  const int32_t to = gpu_.mark();
  gpu_.synchronize();
  return gpu_.milliseconds(from, to) * 1000;
}

void Report::begin(const std::string& section) {
  if (section == section_) return;
  section_ = section;
  table_ += fmt::format("--- {}\n", section);
}

void Report::add(const std::string& section, const std::string& name, int64_t rows, const Timing& timing,
                 nlohmann::json more) {
  begin(section);
  const double us = timing.median();
  nlohmann::json entry{{"name", name}, {"rows", rows}, {"us", us}, {"samples", timing.samples}};
  table_ += fmt::format("{:<34}{:>6}{:>11.2f} us", name, rows, us);
  if (more.contains("floor_us"))
    table_ +=
        fmt::format("{:>10.2f}{:>5.0f}%", more["floor_us"].get<double>(), 100 * more["floor_us"].get<double>() / us);
  if (more.contains("rate")) table_ += fmt::format("  {}", more["rate"].get<std::string>());
  table_ += "\n";
  if (more.is_object()) entry.update(more);
  json_[section].push_back(entry);
}

void Report::note(const std::string& section, const std::string& name, double value, const std::string& unit) {
  begin(section);
  table_ += fmt::format("{:<34}{:>6}{:>11.2f} {}\n", name, "", value, unit);
  json_[section].push_back({{"name", name}, {"value", value}, {"unit", unit}});
}

}  // namespace tandem::bench
