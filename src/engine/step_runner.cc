// The real model behind the engine's interface.
#include "engine/step_runner.h"

#include <algorithm>
#include <thread>

#include "cluster/rank_group.h"
#include "device/threads.h"

namespace tandem::engine {
namespace {

class TextModelRunner : public StepRunner {
 public:
  explicit TextModelRunner(forward::TextModel& model) : model_(model) {}
  void run(const forward::Step& step) override { model_.run(step); }
  std::span<const float> logits() const override { return model_.logits(); }
  forward::DraftLattices lattices() const override { return model_.lattices(); }

 private:
  forward::TextModel& model_;
};

class OneRank : public StepRunner {
 public:
  OneRank(const model::Shape& shape, const model::TextWeights& weights, const forward::Capacity& capacity, int threads,
          forward::DrafterModel drafter)
      : threads_(threads), model_(shape, weights, threads_, capacity, forward::Mutation::none, drafter) {}
  void run(const forward::Step& step) override { model_.run(step); }
  std::span<const float> logits() const override { return model_.logits(); }
  forward::DraftLattices lattices() const override { return model_.lattices(); }

 private:
  device::Threads threads_;
  forward::TextModel model_;
};

class Group : public StepRunner {
 public:
  Group(const model::Shape& shape, const model::TextWeights& weights, const forward::Capacity& capacity,
        const forward::Ranks& ranks, int threads, forward::DrafterModel drafter)
      : group_(shape, weights, {ranks.tensor_parallel_size, ranks.decode_context_parallel_size}, capacity, threads,
               forward::Mutation::none, drafter) {}
  void run(const forward::Step& step) override { group_.run(step); }
  std::span<const float> logits() const override { return group_.logits(); }
  forward::DraftLattices lattices() const override { return group_.lattices(); }

 private:
  cluster::RankGroup group_;
};

}  // namespace

std::unique_ptr<StepRunner> run_text_model(forward::TextModel& model) {
  return std::make_unique<TextModelRunner>(model);
}

std::unique_ptr<StepRunner> run_on_cpu(const model::Shape& shape, const model::TextWeights& weights,
                                       const forward::Capacity& capacity, const forward::Ranks& ranks, int threads,
                                       forward::DrafterModel drafter) {
  const int of_rank = threads_of_rank(threads, ranks);
  if (ranks.tensor_parallel_size == 1 && ranks.decode_context_parallel_size == 1)
    return std::make_unique<OneRank>(shape, weights, capacity, of_rank, drafter);
  return std::make_unique<Group>(shape, weights, capacity, ranks, of_rank, drafter);
}

int threads_of_rank(int threads, const forward::Ranks& ranks) {
  if (threads > 0) return threads;
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return std::max(1, cores / std::max(1, ranks.tensor_parallel_size));
}

}  // namespace tandem::engine
