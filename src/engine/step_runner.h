// The real model behind the interface that the engine drives.
#pragma once

#include <memory>
#include <span>

#include "device/gpu.h"
#include "forward/gpu_model.h"
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
// The same on one GPU. `gpu`, `shape` and the drafter must outlive the runner; `weights` need not. Throws what GpuModel
// throws.
std::unique_ptr<StepRunner> run_on_gpu(device::Gpu& gpu, const model::Shape& shape, const model::TextWeights& weights,
                                       const forward::Capacity& capacity, forward::DrafterModel drafter = {});
// How ranks on GPUs exchange: from queue to queue, or by way of host memory. The same bits.
enum class RankExchange { direct, staged };

// A model on GPUs, rank r on gpus[r]: all ranks as threads of this process. Ranks may share a GPU, each with a Gpu
// object of its own. `gpus`, `shape` and the drafter must outlive the runner. Throws Error(usage) for ranks that there
// are not or that have no GPU, and GpuModel's errors.
std::unique_ptr<StepRunner> run_on_gpus(std::span<device::Gpu* const> gpus, const model::Shape& shape,
                                        const model::TextWeights& weights, const forward::Capacity& capacity,
                                        const forward::Ranks& ranks, forward::DrafterModel drafter = {},
                                        forward::GpuModelOptions options = {},
                                        RankExchange exchange = RankExchange::direct);
// Threads of each rank when --threads is `threads`: these, or the cores divided among the ranks.
int threads_of_rank(int threads, const forward::Ranks& ranks);

}  // namespace tandem::engine
