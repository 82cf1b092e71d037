// Ranks that are known as StepRunners only.
#include "cluster/runner_group.h"

#include "cluster/step_room.h"

namespace tandem::cluster {

RunnerGroup::RunnerGroup(int ranks, int64_t max_values, const forward::Capacity& capacity, const MakeRank& make)
    : hub_(ranks, max_values) {
  for (int32_t rank = 0; rank < ranks; ++rank) {
    ranks_.push_back({make(rank, hub_), {}});
    reserve(ranks_.back().step, capacity);
  }
  bytes_.reserve(step_bytes(ranks_.front().step));
  threads_ = std::make_unique<RankThreads>(hub_, [this](int rank) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    forward::read_step(bytes_, own.step);
    own.model->run(own.step);
  });
}

std::string RunnerGroup::not_finite(const forward::Step& step) {
  for (Rank& rank : ranks_) {
    if (std::string found = rank.model->not_finite(step); !found.empty()) return found;
  }
  return {};
}

forward::RunnerCounts RunnerGroup::counts() const {
  forward::RunnerCounts sum = ranks_.front().model->counts();
  for (size_t rank = 1; rank < ranks_.size(); ++rank) {
    const forward::RunnerCounts more = ranks_[rank].model->counts();
    sum.allocations += more.allocations;
    sum.kernels_loaded += more.kernels_loaded;
    sum.result_bytes += more.result_bytes;
  }
  return sum;
}

void RunnerGroup::run(const forward::Step& step) {
  forward::write_step(step, bytes_);
  threads_->run();
}

}  // namespace tandem::cluster
