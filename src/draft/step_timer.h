// Pieces of a round timed on the model itself: its own greedy continuation of a fixed prompt, windows at their real
// positions (spec/speculation.md 5.3: random ids overprice rows, one repeated id underprices them).
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <vector>

#include "draft/calibration.h"
#include "forward/step_runner.h"

namespace tandem::draft {

struct StepTimerOptions {
  int32_t slot = 0;  // and pages 1 … of the pool: nothing else may be running
  int32_t page_rows = 256;
  int64_t max_rows = 512;
  int64_t vocab_size = 0;
  int32_t rows = 16;                 // of the longest window
  int32_t stride = 8;                // tokens between the places of two passes
  bool samples_in_step = false;      // the model chooses tokens, as it does for most requests on a GPU
  std::function<double()> now_ms{};  // a clock; none: the steady one
};

class StepTimer : public PieceTimer {
 public:
  // Runs the prompt (at least 8 tokens) and its continuation. `runner` must outlive the timer.
  StepTimer(forward::StepRunner& runner, const StepTimerOptions& options, std::span<const int32_t> prompt);

  void begin_pass(int32_t pass) override;
  double time(const Piece& piece) override;

  // The prompt, then what the model said.
  const std::vector<int32_t>& text() const { return text_; }
  // Pages of the pool that are used (from 1 on), and logit rows of a step.
  static int64_t pages(const StepTimerOptions& options, int64_t prompt);

 private:
  void run(const Piece& piece);
  // A step of `rows` rows of the text from `position` on; `certain` of them are kept.
  void run_text(int64_t position, int64_t rows, bool certain, bool all_logits);
  void run_mtp(int64_t position, int64_t rows);
  void run_chain(int64_t position, int32_t token);
  void begin_step(forward::StepKind kind, int64_t position, int64_t rows, bool certain);
  void want(int64_t row);
  int32_t best_of_last() const;

  forward::StepRunner& runner_;
  StepTimerOptions options_;
  std::vector<int32_t> text_;
  int64_t prompt_ = 0;
  int64_t place_ = 0;  // rows of the text that are run: the pass's place
  forward::Step step_;
};

}  // namespace tandem::draft
