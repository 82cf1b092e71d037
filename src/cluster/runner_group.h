// All ranks of any model as threads of one process: RankGroup's rules for models that are known as StepRunners only, so
// for GPUs.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cluster/in_process_exchange.h"
#include "cluster/rank_threads.h"
#include "forward/step.h"
#include "forward/step_runner.h"
#include "forward/text_model.h"

namespace tandem::cluster {

// Makes the model of one rank, which exchanges through the hub. Called rank by rank on the group's own thread.
using MakeRank = std::function<std::unique_ptr<forward::StepRunner>(int32_t rank, InProcessHub& hub)>;

// Every rank computes the same; results are rank 0's and valid until the next run. Only one thread may use the group at
// a time. A rank that throws makes run() throw its error once all ranks have stopped; from there on every call of run()
// throws Error(internal).
class RunnerGroup final : public forward::StepRunner {
 public:
  // `capacity`: of each rank. max_values: what a rank gives the hub at most at a time (InProcessHub).
  RunnerGroup(int ranks, int64_t max_values, const forward::Capacity& capacity, const MakeRank& make);

  void run(const forward::Step& step) override;
  std::span<const float> logits() const override { return ranks_.front().model->logits(); }
  std::span<const ops::Sampled> sampled() const override { return ranks_.front().model->sampled(); }
  forward::DraftLattices lattices() const override { return ranks_.front().model->lattices(); }
  // Of the first rank that has any.
  std::string not_finite(const forward::Step& step) override;
  // Allocations and kernels of all ranks; steps of rank 0.
  forward::RunnerCounts counts() const override;

 private:
  struct Rank {
    std::unique_ptr<forward::StepRunner> model;
    forward::Step step;
  };

  InProcessHub hub_;
  std::vector<Rank> ranks_;
  std::vector<std::byte> bytes_;  // of the step
  std::unique_ptr<RankThreads> threads_;
};

}  // namespace tandem::cluster
