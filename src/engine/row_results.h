// What a step gave for its rows of logits, one after another: whole logits, or the token that the model chose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "forward/step.h"
#include "ops/sample/sample_args.h"

namespace tandem::engine {

class RowResults {
 public:
  // One of the two is there.
  struct Row {
    std::span<const float> logits;  // [vocab_size]
    const ops::Sampled* sampled = nullptr;
  };

  // `step`, `logits` [rows without a sample, vocab_size] and `sampled` [samples] must outlive the results. Throws
  // Error(internal) unless they fit each other.
  RowResults(const forward::Step& step, std::span<const float> logits, std::span<const ops::Sampled> sampled,
             int32_t vocab_size);

  int64_t left() const { return rows_ - row_; }
  Row next();  // left() > 0
  void skip(int64_t rows) {
    for (; rows > 0; --rows) next();
  }

 private:
  std::span<const forward::RowSample> samples_;  // of the rows to come
  std::span<const float> logits_;
  const ops::Sampled* sampled_;
  size_t width_;
  int64_t row_ = 0, rows_;
};

}  // namespace tandem::engine
