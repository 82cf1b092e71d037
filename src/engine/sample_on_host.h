// A model that gives whole logits, as one that chooses tokens in its steps (forward::Step::samples): the host's sampler
// looks at the rows. Recordings of a GPU's steps so run on a CPU, and tests compare both ways.
#pragma once

#include <vector>

#include "engine/sampler.h"
#include "engine/step_runner.h"

namespace tandem::engine {

class SampleOnHost : public StepRunner {
 public:
  // `runner` must outlive it. `max_logit_rows`: of a step.
  SampleOnHost(StepRunner& runner, int32_t vocab_size, int32_t max_logit_rows);

  void run(const forward::Step& step) override;
  std::span<const float> logits() const override { return logits_; }
  std::span<const ops::Sampled> sampled() const override { return sampled_; }
  forward::DraftLattices lattices() const override { return runner_.lattices(); }
  std::string not_finite(const forward::Step& step) override { return runner_.not_finite(step); }
  forward::RunnerCounts counts() const override { return runner_.counts(); }

 private:
  ops::Sampled choose(const forward::Step& step, const forward::RowSample& sample, std::span<const float> row);

  StepRunner& runner_;
  const int32_t vocab_size_, max_logit_rows_;
  Sampler sampler_;
  forward::Step plain_;       // the step without its samples
  std::vector<float> whole_;  // rows without a sample, where there are others
  std::span<const float> logits_;
  std::vector<ops::Sampled> sampled_;
};

}  // namespace tandem::engine
