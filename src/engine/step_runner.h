// The real model behind the interface that the engine drives.
#pragma once

#include <memory>
#include <span>

#include "forward/step_runner.h"
#include "forward/text_model.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::engine {

using forward::StepRunner;

// `model` must outlive the runner.
std::unique_ptr<StepRunner> run_text_model(forward::TextModel& model);

// A model on this machine's cores with all its ranks as threads of this process. `shape`, `weights` and the drafter
// must outlive the runner. `threads`: of each rank. Throws Error(usage) for ranks that there are not,
// Error(does_not_fit).
std::unique_ptr<StepRunner> run_on_cpu(const model::Shape& shape, const model::TextWeights& weights,
                                       const forward::Capacity& capacity, const forward::Ranks& ranks, int threads,
                                       forward::DrafterModel drafter = {});
// Threads of each rank when --threads is `threads`: these, or the cores divided among the ranks.
int threads_of_rank(int threads, const forward::Ranks& ranks);

}  // namespace tandem::engine
