// The forward pass as the engine sees it, so that tests drive the engine with a model of their own.
#pragma once

#include <memory>
#include <span>

#include "forward/step.h"
#include "forward/text_model.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::engine {

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Runs the step; an exception means that the model's state can no longer be trusted.
  virtual void run(const forward::Step& step) = 0;
  // [logit_rows + head_slots, vocab_size] of the last run.
  virtual std::span<const float> logits() const = 0;
};

// `model` must outlive the runner.
std::unique_ptr<StepRunner> run_text_model(forward::TextModel& model);

// A model on this machine's cores with all its ranks as threads of this process. `shape` and `weights` must outlive the
// runner. `threads`: of each rank. Throws Error(usage) for ranks that there are not, Error(does_not_fit).
std::unique_ptr<StepRunner> run_on_cpu(const model::Shape& shape, const model::TextWeights& weights,
                                       const forward::Capacity& capacity, const forward::Ranks& ranks, int threads);
// Threads of each rank when --threads is `threads`: these, or the cores divided among the ranks.
int threads_of_rank(int threads, const forward::Ranks& ranks);

}  // namespace tandem::engine
