// Rows in their order, each from the list that has it.
#include "engine/row_results.h"

#include <fmt/core.h>

#include "base/error.h"

namespace tandem::engine {

RowResults::RowResults(const forward::Step& step, std::span<const float> logits, std::span<const ops::Sampled> sampled,
                       int32_t vocab_size)
    : samples_(step.samples),
      logits_(logits),
      sampled_(sampled.data()),
      width_(static_cast<size_t>(vocab_size)),
      rows_(std::ssize(step.logit_rows) + std::ssize(step.head_slots)) {
  const size_t whole = static_cast<size_t>(rows_) - samples_.size();
  if (logits.size() != whole * width_ || sampled.size() != samples_.size())
    throw Error(ErrorCode::internal, "step", fmt::format("{} logits and {} tokens", logits.size(), sampled.size()),
                fmt::format("{} rows of {} and {} tokens", whole, width_, samples_.size()));
}

RowResults::Row RowResults::next() {
  const int64_t row = row_++;
  if (!samples_.empty() && samples_.front().row == row) {
    samples_ = samples_.subspan(1);
    return {{}, sampled_++};
  }
  const Row whole{logits_.first(width_), nullptr};
  logits_ = logits_.subspan(width_);
  return whole;
}

}  // namespace tandem::engine
