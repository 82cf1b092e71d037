// The real model behind the engine's interface.
#include "engine/step_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cluster/gpu_exchange.h"
#include "cluster/rank_group.h"
#include "cluster/runner_group.h"
#include "device/threads.h"
#include "forward/gpu_model.h"
#include "forward/not_finite.h"

namespace tandem::engine {
namespace {

// StepRunner::not_finite() of one rank or of a group of them; `shape` is the whole model's.
template <typename Model>
std::string find_not_finite(const Model& model, const model::Shape& shape, const forward::Step& step) {
  if (step.kind != forward::StepKind::text || step.tokens.empty()) return {};
  const int64_t width = shape.kda_width(), size = width * shape.kda_head_dim;
  std::vector<float> state(static_cast<size_t>(size));
  std::vector<float> conv(static_cast<size_t>(3 * width * (shape.short_conv_kernel_size - 1)));
  const int64_t layers = std::count(shape.layer_types.begin(), shape.layer_types.end(), model::AttentionKind::kda);
  for (const forward::Segment& segment : step.segments) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      model.read_kda_state(segment.slot, layer, state, conv);
      if (const int64_t count = forward::count_not_finite(state); count > 0)
        return forward::not_finite_state(shape, layer, segment.slot, count, size);
    }
  }
  return forward::not_finite_hidden(step, model.hidden(), shape.hidden_size);
}

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
      : shape_(shape),
        threads_(threads),
        model_(shape, weights, threads_, capacity, forward::Mutation::none, drafter) {}
  void run(const forward::Step& step) override { model_.run(step); }
  std::span<const float> logits() const override { return model_.logits(); }
  forward::DraftLattices lattices() const override { return model_.lattices(); }
  std::string not_finite(const forward::Step& step) override { return find_not_finite(model_, shape_, step); }

 private:
  const model::Shape& shape_;
  device::Threads threads_;
  forward::TextModel model_;
};

class RankedGroup : public StepRunner {
 public:
  RankedGroup(const model::Shape& shape, const model::TextWeights& weights, const forward::Capacity& capacity,
              const forward::Ranks& ranks, int threads, forward::DrafterModel drafter)
      : shape_(shape),
        group_(shape, weights, {ranks.tensor_parallel_size, ranks.decode_context_parallel_size}, capacity, threads,
               forward::Mutation::none, drafter) {}
  void run(const forward::Step& step) override { group_.run(step); }
  std::span<const float> logits() const override { return group_.logits(); }
  forward::DraftLattices lattices() const override { return group_.lattices(); }
  std::string not_finite(const forward::Step& step) override { return find_not_finite(group_, shape_, step); }

 private:
  const model::Shape& shape_;
  cluster::RankGroup group_;
};

// A rank's end of the exchange.
class GpuRankEnd {
 public:
  GpuRankEnd(RankExchange kind, cluster::InProcessHub& hub, device::Gpu& gpu, int rank, int64_t max_bytes)
      : values_(hub, rank) {
    if (kind == RankExchange::direct) {
      exchange_ = std::make_unique<cluster::DirectGpuExchange>(gpu, hub, rank);
    } else {
      exchange_ = std::make_unique<cluster::StagedGpuExchange>(gpu, values_, max_bytes);
    }
  }
  device::GpuExchange& exchange() { return *exchange_; }

 private:
  cluster::InProcessExchange values_;
  std::unique_ptr<device::GpuExchange> exchange_;
};

// A rank's model with its end.
class GpuRank : public StepRunner {
 public:
  GpuRank(std::unique_ptr<GpuRankEnd> end, device::Gpu& gpu, const model::Shape& shape,
          const model::TextWeights& weights, const forward::Capacity& capacity, forward::Ranks ranks,
          forward::DrafterModel drafter, forward::GpuModelOptions options)
      : end_(std::move(end)), model_(gpu, shape, weights, capacity, ranks, end_->exchange(), drafter, options) {}
  void run(const forward::Step& step) override { model_.run(step); }
  std::span<const float> logits() const override { return model_.logits(); }
  std::span<const ops::Sampled> sampled() const override { return model_.sampled(); }
  forward::DraftLattices lattices() const override { return model_.lattices(); }
  std::string not_finite(const forward::Step& step) override { return model_.not_finite(step); }
  forward::RunnerCounts counts() const override { return model_.counts(); }

 private:
  std::unique_ptr<GpuRankEnd> end_;
  forward::GpuModel model_;
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
  return std::make_unique<RankedGroup>(shape, weights, capacity, ranks, of_rank, drafter);
}

std::unique_ptr<StepRunner> run_on_gpu(device::Gpu& gpu, const model::Shape& shape, const model::TextWeights& weights,
                                       const forward::Capacity& capacity, forward::DrafterModel drafter) {
  return std::make_unique<forward::GpuModel>(gpu, shape, weights, capacity, drafter);
}

std::unique_ptr<StepRunner> run_on_gpus(std::span<device::Gpu* const> gpus, const model::Shape& shape,
                                        const model::TextWeights& weights, const forward::Capacity& capacity,
                                        const forward::Ranks& ranks, forward::DrafterModel drafter,
                                        forward::GpuModelOptions options, RankExchange exchange) {
  const int32_t size = ranks.tensor_parallel_size;
  if (size < 1 || std::ssize(gpus) < size)
    throw Error(ErrorCode::usage, "--tensor-parallel-size", fmt::format("{} on {} GPUs", size, gpus.size()),
                "a GPU for each rank");
  if (size == 1 && ranks.decode_context_parallel_size == 1)
    return std::make_unique<forward::GpuModel>(*gpus[0], shape, weights, capacity, drafter, options);
  const int64_t bytes = forward::GpuModel::exchange_bytes(shape, capacity, ranks, drafter.shape);
  const int64_t values = exchange == RankExchange::direct ? cluster::DirectGpuExchange::hub_values : bytes / 4;
  return std::make_unique<cluster::RunnerGroup>(
      size, values, capacity, [&](int32_t rank, cluster::InProcessHub& hub) -> std::unique_ptr<StepRunner> {
        device::Gpu& gpu = *gpus[static_cast<size_t>(rank)];
        return std::make_unique<GpuRank>(
            std::make_unique<GpuRankEnd>(exchange, hub, gpu, rank, bytes), gpu, shape, weights, capacity,
            forward::Ranks{rank, size, ranks.decode_context_parallel_size}, drafter, options);
      });
}

int threads_of_rank(int threads, const forward::Ranks& ranks) {
  if (threads > 0) return threads;
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return std::max(1, cores / std::max(1, ranks.tensor_parallel_size));
}

}  // namespace tandem::engine
