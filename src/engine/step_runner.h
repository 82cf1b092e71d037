// The forward pass as the engine sees it, so that tests drive the engine with a model of their own.
#pragma once

#include <memory>
#include <span>

#include "forward/step.h"

namespace tandem::forward {
class TextModel;
}

namespace tandem::engine {

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Runs the step; an exception means that the model's state can no longer be trusted.
  virtual void run(const forward::Step& step) = 0;
  // [logit_rows, vocab_size] of the last run.
  virtual std::span<const float> logits() const = 0;
};

// `model` must outlive the runner.
std::unique_ptr<StepRunner> run_text_model(forward::TextModel& model);

}  // namespace tandem::engine
