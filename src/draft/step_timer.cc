// What the pieces are made of.
#include "draft/step_timer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "draft/proposal.h"

namespace tandem::draft {
namespace {

constexpr int64_t shortest_prompt = 8;  // a piece absorbs 6 rows before the first place
constexpr int64_t longest_window = most_drafts + 1;

int64_t length_of_text(const StepTimerOptions& options, int64_t prompt) {
  return prompt + int64_t{calibration_passes} * options.stride + longest_window;
}

}  // namespace

int64_t StepTimer::pages(const StepTimerOptions& options, int64_t prompt) {
  return (length_of_text(options, prompt) + options.page_rows - 1) / options.page_rows;
}

StepTimer::StepTimer(forward::StepRunner& runner, const StepTimerOptions& options, std::span<const int32_t> prompt)
    : runner_(runner), options_(options), text_(prompt.begin(), prompt.end()), prompt_(std::ssize(prompt)) {
  if (prompt_ < shortest_prompt)
    throw Error(ErrorCode::usage, "calibration prompt", fmt::format("{} tokens", prompt_),
                fmt::format("at least {}", shortest_prompt));
  if (!options_.now_ms) {
    options_.now_ms = [] {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      return std::chrono::duration<double, std::milli>(now).count();
    };
  }
  for (int64_t position = 0; position < prompt_; position += options_.max_rows)
    run_text(position, std::min(prompt_ - position, options_.max_rows), true, false);
  text_.push_back(best_of_last());
  while (std::ssize(text_) < length_of_text(options_, prompt_)) {
    run_text(std::ssize(text_) - 1, 1, true, false);
    text_.push_back(best_of_last());
  }
}

// The stream from its start up to the pass's place: windows of a pass may then be run there again and again, since none
// of their rows is certain.
void StepTimer::begin_pass(int32_t pass) {
  place_ = prompt_ + int64_t{pass % calibration_passes} * options_.stride;
  for (int64_t position = 0; position < place_; position += options_.max_rows)
    run_text(position, std::min(place_ - position, options_.max_rows), true, false);
}

// The second run of two: the first finds in the caches what the piece before it left there, which is not what a round
// finds after another of its kind.
double StepTimer::time(const Piece& piece) {
  run(piece);
  const double began = options_.now_ms();
  run(piece);
  return options_.now_ms() - began;
}

void StepTimer::run(const Piece& piece) {
  switch (piece.kind) {
    case Piece::Kind::verify:
      if (piece.count > longest_window)
        throw Error(ErrorCode::usage, "calibration rows", fmt::format("{}", piece.count),
                    fmt::format("at most {}", longest_window));
      run_text(place_, piece.count, false, true);
      break;
    case Piece::Kind::mtp:
      run_mtp(place_ - 1, 1);
      for (int32_t draft = 1; draft < piece.count; ++draft) run_chain(place_ + draft - 1, best_of_last());
      break;
    case Piece::Kind::mtp_absorb: run_mtp(place_ - piece.count, piece.count); break;
    case Piece::Kind::block:
      begin_step(forward::StepKind::dflash2, place_, 1, true);
      step_.tokens.push_back(text_[static_cast<size_t>(place_)]);
      runner_.run(step_);
      runner_.lattices();
      break;
  }
  if (piece.kind != Piece::Kind::block) best_of_last();
}

void StepTimer::begin_step(forward::StepKind kind, int64_t position, int64_t rows, bool certain) {
  step_.clear();
  step_.kind = kind;
  const int64_t pages = (position + rows + options_.page_rows - 1) / options_.page_rows;
  step_.segments.push_back({.slot = options_.slot,
                            .pages = static_cast<int32_t>(pages),
                            .rows = static_cast<int32_t>(rows),
                            .certain_rows = certain ? static_cast<int32_t>(rows) : 0,
                            .position = position});
  for (int64_t row = 0; row < rows; ++row) step_.positions.push_back(position + row);
  for (int32_t page = 1; page <= pages; ++page) step_.page_tables.push_back(page);
}

void StepTimer::run_text(int64_t position, int64_t rows, bool certain, bool all_logits) {
  begin_step(forward::StepKind::text, position, rows, certain);
  for (int64_t row = 0; row < rows; ++row) {
    step_.tokens.push_back(text_[static_cast<size_t>(position + row)]);
    if (all_logits || row == rows - 1) want(row);
  }
  runner_.run(step_);
}

void StepTimer::run_mtp(int64_t position, int64_t rows) {
  begin_step(forward::StepKind::mtp_absorb, position, rows, true);
  for (int64_t row = 0; row < rows; ++row) step_.tokens.push_back(text_[static_cast<size_t>(position + row + 1)]);
  want(rows - 1);
  runner_.run(step_);
}

void StepTimer::run_chain(int64_t position, int32_t token) {
  begin_step(forward::StepKind::mtp_chain, position, 1, true);
  step_.tokens.push_back(token);
  want(0);
  runner_.run(step_);
}

void StepTimer::want(int64_t row) {
  if (options_.samples_in_step)
    step_.samples.push_back({.temperature = 0,
                             .row = static_cast<int32_t>(step_.logit_rows.size()),
                             .size = static_cast<int32_t>(options_.vocab_size)});
  step_.logit_rows.push_back(static_cast<int32_t>(row));
}

int32_t StepTimer::best_of_last() const {
  if (const auto sampled = runner_.sampled(); !sampled.empty()) return sampled.back().token;
  const std::span<const float> logits = runner_.logits();
  const auto size = static_cast<size_t>(options_.vocab_size);
  if (size == 0 || logits.size() < size)
    throw Error(ErrorCode::internal, "calibration", fmt::format("{} logits", logits.size()),
                fmt::format("at least {}", std::max<size_t>(size, 1)));
  const std::span<const float> last = logits.last(size);
  return static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin());
}

}  // namespace tandem::draft
