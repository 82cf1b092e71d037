// The loop over windows, chunks and blocks of rows; every position is measured when its logits are there, so that
// nothing as large as a window of logits is kept.
#include "eval/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "device/threads.h"
#include "eval/capture.h"
#include "eval/quality_math.h"

namespace tandem::eval {
namespace {

constexpr int64_t block_rows = 32;  // compared at a time by all threads: 160 MB of both sides on GLM-5.3-Flash

// One source within a run.
struct Side {
  LogitSource* source;
  Answers& answers;
  std::span<const float> logits;  // of the chunk
  std::vector<LogitRow> rows;     // of the block; rows[0] is the position before it
  std::vector<char> is_finite;    // of each of them

  void normalise_row(int64_t row_of_block, int64_t row_of_chunk) {
    const auto vocab = static_cast<size_t>(source->vocab_size()), at = static_cast<size_t>(row_of_block) + 1;
    is_finite[at] = normalise(logits.subspan(static_cast<size_t>(row_of_chunk) * vocab, vocab), rows[at]) ? 1 : 0;
  }
  void take(const Windows& windows, size_t window, int64_t position, int64_t row_of_block) {
    const auto at = static_cast<size_t>(row_of_block) + 1;
    if (is_finite[at] == 0)
      throw Error(ErrorCode::failed_check, fmt::format("{}: window {}, position {}", source->name(), window, position),
                  "a logit that is not finite", "finite logits");
    answers.best.push_back(rows[at].best);
    const int32_t next = windows.windows[window].ids[static_cast<size_t>(position) + 1];
    answers.nll.push_back(-rows[at].log_p[static_cast<size_t>(next)]);
  }
};

void check_vocabularies(const LogitSource& teacher, const LogitSource& student) {
  if (teacher.vocab_size() == student.vocab_size()) return;
  throw Error(ErrorCode::bad_file, student.name(), fmt::format("a vocabulary of {}", student.vocab_size()),
              fmt::format("{} as {} has", teacher.vocab_size(), teacher.name()));
}

class ComparisonRunner {
 public:
  ComparisonRunner(const Windows& windows, LogitSource* teacher, LogitSource* student, const QualityRunOptions& options)
      : windows_(windows), options_(options), threads_(options.threads) {
    const std::vector<LogitRow> rows(block_rows + 1);
    const std::vector<char> finite(rows.size());
    if (teacher != nullptr) sides_.push_back({teacher, run_.teacher, {}, rows, finite});
    if (student != nullptr) sides_.push_back({student, run_.student, {}, rows, finite});
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
      for (int64_t row = 0; row < rows; row += block_rows)
        measure(window, first + row, row, std::min(block_rows, rows - row));
      done_ += rows;
      if (options_.progress) options_.progress(done_);
    }
  }

  // Threads fill the rows of a block; what they found is added up in the order of positions.
  void measure(size_t window, int64_t position, int64_t row_of_chunk, int64_t count) {
    const auto sides = std::ssize(sides_);
    threads_.run(count * sides, [&](int64_t task) {
      sides_[static_cast<size_t>(task % sides)].normalise_row(task / sides, row_of_chunk + task / sides);
    });
    for (int64_t row = 0; row < count; ++row)
      for (Side& side : sides_) side.take(windows_, window, position + row, row);
    if (sides == 2) compare(position, count);
    for (Side& side : sides_) std::swap(side.rows[0], side.rows[static_cast<size_t>(count)]);
  }

  void compare(int64_t position, int64_t count) {
    const std::vector<LogitRow>&teacher = sides_[0].rows, &student = sides_[1].rows;
    std::array<std::array<double, 3>, block_rows> found{};  // by shift, as OffsetAudit
    threads_.run(count, [&](int64_t row) {
      const size_t i = static_cast<size_t>(row), before = i, at = i + 1;
      found[i][1] = kl_divergence(teacher[at], student[at]);
      if (position + row == 0) return;
      found[i][0] = kl_divergence(teacher[at], student[before]);
      found[i][2] = kl_divergence(teacher[before], student[at]);
    });
    for (int64_t row = 0; row < count; ++row) {
      const std::array<double, 3>& shifts = found[static_cast<size_t>(row)];
      run_.kld.push_back(shifts[1]);
      if (position + row == 0) continue;
      for (const size_t side : {0, 2}) run_.audit.means[side] += shifts[side];
      ++run_.audit.positions;
    }
  }

  const Windows& windows_;
  const QualityRunOptions& options_;
  device::Threads threads_;
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
  return ComparisonRunner(windows, teacher, student, options).run();
}

}  // namespace tandem::eval
