// What a quality run found, as numbers, text, JSON and one picture.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/quality.h"
#include "eval/quality_math.h"

namespace tandem::eval {

// One side of a comparison as it was asked for.
struct QualitySide {
  std::string name;             // the folder's own name; of a capture, the model's that it is of
  std::string kv_cache_dtype;   // empty for a capture
  std::string capture;          // file name; empty: a model that ran
  uint32_t config_crc = 0;      // CRC32C of config.json
  std::string compute = "f32";  // arithmetic of activations; of a capture not known
};

struct Perplexity {
  double mean_nll = 0;                   // nats
  std::optional<double> mean_nll_error;  // standard error over windows
  double value() const;                  // exp(mean_nll)
};

// Positions first … last of all windows together.
struct CurveBin {
  int64_t first = 0, last = 0, count = 0;
  double mean_kld = 0, top1 = 0;
};

struct Outlier {
  int64_t window = 0, position = 0;
  double kld = 0;
  int32_t next = 0, teacher_best = 0, student_best = 0;  // token ids
};

struct Histogram {  // of log10 KLD in halves of a decade
  static constexpr int first_exponent = -16, decades = 18;
  std::vector<int64_t> counts = std::vector<int64_t>(2 * decades);  // the last one has what is larger, too
  int64_t below = 0;                                                // less than 1e-16, and 0
};

// The comparison of teacher and student.
struct Divergence {
  Distribution kld;
  std::optional<double> kld_error, top1_error;  // standard errors over windows
  double top1 = 0;                              // share of positions with the same largest logit
  OffsetAudit audit;
  std::vector<CurveBin> curve;  // at most 32 bins
  Histogram histogram;
  std::vector<Outlier> worst;  // at most 10, largest KLD first
};

// One cold run.
struct RunFigures {
  double mean_kld = 0, top1 = 0, student_perplexity = 0, seconds = 0;
};

struct QualityReport {
  std::string text;  // file
  int64_t texts = 0, windows = 0, window = 0, tokens = 0, positions = 0;
  std::string token_sha256;
  std::optional<QualitySide> teacher, student;
  std::optional<Perplexity> teacher_perplexity, student_perplexity;
  std::optional<Divergence> divergence;  // of the first run
  std::vector<RunFigures> runs;
  std::string capture;  // file that was written; empty: none
  int64_t capture_bytes = 0;

  double mean_of_runs() const, deviation_of_runs() const;  // of mean_kld; deviation with n
};

// Sides, text and capture are left to the caller. `runs` is not empty; all are of `windows`.
QualityReport quality_report(const Windows& windows, const std::vector<QualityRun>& runs);

using TokenText = std::function<std::string(int32_t)>;  // of an id, for the list of outliers

std::string quality_report_text(const QualityReport& report, const TokenText& token_text);
// One object, first key "schema": "tandem.eval_kld/1", or without a teacher "tandem.eval_ppl/1".
std::string quality_report_json(const QualityReport& report, const TokenText& token_text);
// The curve over positions and the histogram. The report must have a divergence.
std::string quality_report_svg(const QualityReport& report);

}  // namespace tandem::eval
