// The loop over windows and chunks of rows; every position is measured when its logits are there, so that nothing as
// large as a window of logits is kept.
#include "eval/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "eval/capture.h"
#include "eval/quality_math.h"

namespace tandem::eval {
namespace {

// One source within a run, with the row of the position before.
struct Side {
  LogitSource* source;
  Answers& answers;
  LogitRow row, before;
  std::span<const float> logits;  // of the chunk

  void take(const Windows& windows, size_t window, int64_t position, int64_t row_of_chunk) {
    const auto vocab = static_cast<size_t>(source->vocab_size());
    std::swap(row, before);
    if (!normalise(logits.subspan(static_cast<size_t>(row_of_chunk) * vocab, vocab), row))
      throw Error(ErrorCode::failed_check, fmt::format("{}: window {}, position {}", source->name(), window, position),
                  "a logit that is not finite", "finite logits");
    answers.best.push_back(row.best);
    const int32_t next = windows.windows[window].ids[static_cast<size_t>(position) + 1];
    answers.nll.push_back(-row.log_p[static_cast<size_t>(next)]);
  }
};

void check_vocabularies(const LogitSource& teacher, const LogitSource& student) {
  if (teacher.vocab_size() == student.vocab_size()) return;
  throw Error(ErrorCode::bad_file, student.name(), fmt::format("a vocabulary of {}", student.vocab_size()),
              fmt::format("{} as {} has", teacher.vocab_size(), teacher.name()));
}

class Runner {
 public:
  Runner(const Windows& windows, LogitSource* teacher, LogitSource* student, const QualityRunOptions& options)
      : windows_(windows), options_(options) {
    if (teacher != nullptr) sides_.push_back({teacher, run_.teacher, {}, {}, {}});
    if (student != nullptr) sides_.push_back({student, run_.student, {}, {}, {}});
    const int64_t vocab = sides_.at(0).source->vocab_size();
    chunk_ = options.chunk_rows > 0 ? options.chunk_rows : chunk_rows_for(vocab);
    if (sides_.size() == 2) check_vocabularies(*teacher, *student);
  }

  QualityRun run() {
    const auto start = std::chrono::steady_clock::now();
    for (size_t window = 0; window < windows_.windows.size(); ++window) run_window(window);
    if (options_.capture != nullptr) options_.capture->seal();
    run_.audit.means[1] = run_.kld.empty() ? 0 : mean_of(run_.kld);
    if (run_.audit.positions > 0)
      for (const size_t side : {0, 2}) run_.audit.means[side] /= static_cast<double>(run_.audit.positions);
    run_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(run_);
  }

 private:
  void run_window(size_t window) {
    const int64_t positions = windows_.windows[window].positions();
    for (Side& side : sides_) side.source->start(windows_, window);
    for (int64_t first = 0; first < positions; first += chunk_) {
      const int64_t rows = std::min(chunk_, positions - first);
      for (Side& side : sides_) side.logits = side.source->next(rows);
      if (options_.capture != nullptr) options_.capture->add(sides_[0].logits);
      for (int64_t row = 0; row < rows; ++row) measure(window, first + row, row);
      done_ += rows;
      if (options_.progress) options_.progress(done_);
    }
  }

  void measure(size_t window, int64_t position, int64_t row_of_chunk) {
    for (Side& side : sides_) side.take(windows_, window, position, row_of_chunk);
    if (sides_.size() < 2) return;
    const Side &teacher = sides_[0], &student = sides_[1];
    run_.kld.push_back(kl_divergence(teacher.row, student.row));
    if (position == 0) return;
    run_.audit.means[0] += kl_divergence(teacher.row, student.before);
    run_.audit.means[2] += kl_divergence(teacher.before, student.row);
    ++run_.audit.positions;
  }

  const Windows& windows_;
  const QualityRunOptions& options_;
  QualityRun run_;
  std::vector<Side> sides_;  // the teacher first
  int64_t chunk_ = 1, done_ = 0;
};

}  // namespace

bool OffsetAudit::passes() const { return positions == 0 || 2 * means[1] < std::min(means[0], means[2]); }

int64_t chunk_rows_for(int64_t vocab_size) {
  constexpr int64_t bytes = 64 << 20;
  return std::clamp<int64_t>(bytes / (vocab_size * static_cast<int64_t>(sizeof(float))), 1, 512);
}

QualityRun run_quality(const Windows& windows, LogitSource* teacher, LogitSource* student,
                       const QualityRunOptions& options) {
  return Runner(windows, teacher, student, options).run();
}

}  // namespace tandem::eval
