// Runs to figures.
#include "eval/quality_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem::eval {
namespace {

constexpr int64_t most_bins = 32;
constexpr size_t most_outliers = 10;

std::vector<int64_t> positions_by_window(const Windows& windows) {
  std::vector<int64_t> counts;
  for (const Window& window : windows.windows) counts.push_back(window.positions());
  return counts;
}

Perplexity perplexity_of(const Answers& answers, std::span<const int64_t> counts) {
  return {mean_of(answers.nll), clustered_error(answers.nll, counts)};
}

std::vector<double> agreement(const QualityRun& run) {
  std::vector<double> same(run.kld.size());
  for (size_t i = 0; i < same.size(); ++i) same[i] = run.teacher.best[i] == run.student.best[i] ? 1 : 0;
  return same;
}

std::vector<CurveBin> curve_of(std::span<const double> kld, std::span<const double> same,
                               std::span<const int64_t> counts) {
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  const int64_t width = (longest + most_bins - 1) / most_bins;
  std::vector<CurveBin> bins(static_cast<size_t>((longest + width - 1) / width));
  size_t i = 0;
  for (const int64_t count : counts) {
    for (int64_t position = 0; position < count; ++position, ++i) {
      CurveBin& bin = bins[static_cast<size_t>(position / width)];
      ++bin.count;
      bin.mean_kld += kld[i];
      bin.top1 += same[i];
    }
  }
  for (size_t b = 0; b < bins.size(); ++b) {
    bins[b].first = static_cast<int64_t>(b) * width;
    bins[b].last = std::min(bins[b].first + width, longest) - 1;
    bins[b].mean_kld /= static_cast<double>(bins[b].count);
    bins[b].top1 /= static_cast<double>(bins[b].count);
  }
  return bins;
}

Histogram histogram_of(std::span<const double> kld) {
  Histogram histogram;
  for (const double value : kld) {
    const double place = value > 0 ? 2 * (std::log10(value) - Histogram::first_exponent) : -1;
    if (place < 0) {
      ++histogram.below;
    } else {
      ++histogram.counts[std::min(static_cast<size_t>(place), histogram.counts.size() - 1)];
    }
  }
  return histogram;
}

std::vector<Outlier> worst_of(const Windows& windows, const QualityRun& run) {
  std::vector<Outlier> all;
  size_t i = 0;
  for (size_t window = 0; window < windows.windows.size(); ++window) {
    const Window& w = windows.windows[window];
    for (int64_t position = 0; position < w.positions(); ++position, ++i)
      all.push_back({static_cast<int64_t>(window), position, run.kld[i], w.ids[static_cast<size_t>(position) + 1],
                     run.teacher.best[i], run.student.best[i]});
  }
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), most_outliers));
  std::stable_sort(all.begin(), all.end(), [](const Outlier& a, const Outlier& b) { return a.kld > b.kld; });
  return {all.begin(), end};
}

Divergence divergence_of(const Windows& windows, const QualityRun& run, std::span<const int64_t> counts) {
  const auto same = agreement(run);
  Divergence d;
  d.kld = distribution_of(run.kld);
  d.kld_error = clustered_error(run.kld, counts);
  d.top1 = mean_of(same);
  d.top1_error = clustered_error(same, counts);
  d.audit = run.audit;
  d.curve = curve_of(run.kld, same, counts);
  d.histogram = histogram_of(run.kld);
  d.worst = worst_of(windows, run);
  return d;
}

RunFigures figures_of(const QualityRun& run) {
  RunFigures figures;
  figures.seconds = run.seconds;
  if (!run.kld.empty()) {
    figures.mean_kld = mean_of(run.kld);
    figures.top1 = mean_of(agreement(run));
  }
  if (!run.student.empty()) figures.student_perplexity = std::exp(mean_of(run.student.nll));
  return figures;
}

std::vector<double> means(const std::vector<RunFigures>& runs) {
  std::vector<double> values;
  for (const RunFigures& run : runs) values.push_back(run.mean_kld);
  return values;
}

}  // namespace

double Perplexity::value() const { return std::exp(mean_nll); }

double QualityReport::mean_of_runs() const { return mean_of(means(runs)); }
double QualityReport::deviation_of_runs() const { return population_deviation(means(runs)); }

QualityReport quality_report(const Windows& windows, const std::vector<QualityRun>& runs) {
  const QualityRun& first = runs.at(0);
  const auto counts = positions_by_window(windows);
  QualityReport report;
  report.texts = std::ssize(windows.texts);
  report.windows = std::ssize(windows.windows);
  report.window = windows.size;
  report.tokens = windows.tokens();
  report.positions = windows.positions();
  report.token_sha256 = hex(windows.token_hash);
  if (!first.teacher.empty()) report.teacher_perplexity = perplexity_of(first.teacher, counts);
  if (!first.student.empty()) report.student_perplexity = perplexity_of(first.student, counts);
  if (!first.kld.empty()) report.divergence = divergence_of(windows, first, counts);
  for (const QualityRun& run : runs) report.runs.push_back(figures_of(run));
  return report;
}

}  // namespace tandem::eval
