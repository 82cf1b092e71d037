// Quality of a model's answers, position by position over given text: how far a student's distribution is from its
// teacher's, and how well each predicts (spec/quantization.md 6.1). No engine, no drafts: rows of one stream after
// another.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "eval/quality_text.h"

namespace tandem::eval {

class CaptureWriter;

// Where the logits of a window's positions come from: a model, or the file that a model's were kept in.
class LogitSource {
 public:
  virtual ~LogitSource() = default;
  virtual const std::string& name() const = 0;  // for errors
  virtual int64_t vocab_size() const = 0;
  // Begins `windows.windows[window]`.
  virtual void start(const Windows& windows, size_t window) = 0;
  // fp32 logits [rows, vocab_size] of its next `rows` positions, valid until the next call. Throws Error for rows
  // beyond the window's positions.
  virtual std::span<const float> next(int64_t rows) = 0;
};

// What one source said of every position, in the order of windows and positions.
struct Answers {
  std::vector<double> nll;    // −log p of the token that came next, nats
  std::vector<int32_t> best;  // id of the largest logit

  bool empty() const { return nll.empty(); }
};

// Means of KLD(teacher at i ‖ student at i + shift): a pass that is off by one row has its minimum elsewhere than at 0.
struct OffsetAudit {
  std::array<double, 3> means{};  // shift −1, 0, +1
  int64_t positions = 0;          // of the outer two; 0: windows of two tokens only, nothing can be said

  // At 0 less than half of either neighbour's, or no positions.
  bool passes() const;
};

struct QualityRun {
  Answers teacher, student;  // empty: there was none
  std::vector<double> kld;   // empty without both
  OffsetAudit audit;
  double seconds = 0;
};

struct QualityRunOptions {
  CaptureWriter* capture = nullptr;       // gets the teacher's logits and is sealed
  int64_t chunk_rows = 0;                 // rows asked for at a time; 0: chunk_rows_for the vocabulary
  int threads = 1;                        // that compare rows; 0: one for each core. No figure depends on them
  std::function<void(int64_t)> progress;  // may be empty; called with the number of positions done
};

// Rows whose logits take at most 64 MiB: 1 to 512.
int64_t chunk_rows_for(int64_t vocab_size);

// Runs all windows through those sources that are not null, at least one. Throws Error: bad_file if their vocabularies
// are not of one size; failed_check naming source, window and position of a logit that is not finite; what sources
// throw.
QualityRun run_quality(const Windows& windows, LogitSource* teacher, LogitSource* student,
                       const QualityRunOptions& options = {});

}  // namespace tandem::eval
