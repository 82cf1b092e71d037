// The text model on one GPU: forward/text_model.h's rules, Step in, logits out. Rows of decode and verification run as
// recorded graphs, one for each size of step; prompt chunks are queued launch by launch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/gpu.h"
#include "device/gpu_exchange.h"
#include "forward/step_runner.h"
#include "forward/text_model.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::forward {

struct GpuModelOptions {
  bool graphs = true;  // without, or where the exchange between ranks is no part of a graph, every step is queued
                       // launch by launch: the same bits
};

class GpuModel : public StepRunner {
 public:
  // Everything is allocated, compiled and recorded here. `shape` and the drafter must outlive the model, `weights` need
  // not. Throws Error(bad_file) for weights that no CUDA kernel reads, Error(usage) for a cache type that a GPU does
  // not have (f32), Error(does_not_fit).
  GpuModel(device::Gpu& gpu, const model::Shape& shape, const model::TextWeights& weights, const Capacity& capacity,
           DrafterModel drafter = {}, GpuModelOptions options = {});
  // One of `ranks.tensor_parallel_size` ranks, from the whole model's shape and weights. All ranks run the same steps;
  // each has all results (cluster/runner_group.h runs them as threads). `exchange` must outlive the model and take
  // exchange_bytes(). Throws Error(usage) for sizes that there are not on GPUs.
  GpuModel(device::Gpu& gpu, const model::Shape& shape, const model::TextWeights& weights, const Capacity& capacity,
           Ranks ranks, device::GpuExchange& exchange, DrafterModel drafter = {}, GpuModelOptions options = {});
  ~GpuModel() override;

  // Device memory that a model allocates beside its weights, by the constructor's own formulas. `gpu` stands for one
  // that need not be there.
  static int64_t planned_bytes(const device::GpuProperties& gpu, const model::Shape& shape, const Capacity& capacity,
                               const model::DrafterShape* drafter = nullptr, Ranks ranks = {});
  // Compiles or loads the text model's kernels before anything else is done, so that a missing compiler shows early.
  // Throws Error(resource).
  static void load_kernels(device::Gpu& gpu, const model::Shape& shape, const model::DrafterShape* drafter = nullptr);
  // Throws Error(bad_file) as the constructor does.
  static int64_t weight_bytes(const model::Shape& shape, const model::TextWeights& weights, bool mtp, Ranks ranks = {});
  // The most bytes that a rank gives the others at a time.
  static int64_t exchange_bytes(const model::Shape& shape, const Capacity& capacity, Ranks ranks,
                                const model::DrafterShape* drafter = nullptr);

  // TextModel::run()'s rules and errors; returns when the results lie in host memory.
  void run(const Step& step) override;
  std::span<const float> logits() const override;
  std::span<const ops::Sampled> sampled() const override;
  DraftLattices lattices() const override;
  // The post-final-norm hidden of all rows of the last text step: [rows, hidden_size].
  std::vector<float> hidden();

  // Steps that ran as a graph, and as launches.
  int64_t graph_steps() const;
  int64_t launched_steps() const;
  RunnerCounts counts() const override;
  std::string not_finite(const Step& step) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::forward
