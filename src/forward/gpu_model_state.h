// The insides of the model on a GPU.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cache/gpu_kept_states.h"
#include "cache/gpu_pool.h"
#include "cache/gpu_slots.h"
#include "forward/gpu_dflash2.h"
#include "forward/gpu_group.h"
#include "forward/gpu_model.h"
#include "forward/gpu_ops.h"
#include "forward/gpu_pass.h"
#include "forward/gpu_scratch.h"
#include "forward/gpu_step.h"
#include "forward/gpu_weights.h"
#include "forward/step_book.h"

namespace tandem::forward {

struct GpuModel::State : StepBook {
  device::Gpu& gpu;
  GpuGroup group;
  const model::Shape shape;  // with this rank's heads and dense MLP width
  const GpuModelOptions options;
  const std::vector<std::string> defines;
  GpuOps ops;
  GpuWeights weights;
  cache::GpuPool pool;
  cache::GpuSlots slots;
  cache::GpuKeptStates kept;
  GpuStep step_block;
  device::GpuMemory memory, exchanged;
  GpuScratch scratch{};
  device::PinnedMemory host_logits, host_sampled;
  std::unique_ptr<GpuDflash2> drafter;                           // may be none
  std::map<std::pair<StepKind, int64_t>, device::Graph> graphs;  // by the most rows, or blocks, of a step
  std::vector<int64_t> kda_blocks;                               // [slots] before the step
  int64_t rows = 0;                                              // of the last text step
  int64_t logit_rows = 0, samples = 0, whole_rows = 0;           // of the last run; whole: without a sample
  int64_t graph_steps = 0, launched_steps = 0, result_bytes = 0;

  // `whole` and `w`: of all ranks.
  State(device::Gpu& g, const model::Shape& whole, const model::TextWeights& w, const Capacity& c,
        const GpuGroup& ranks, DrafterModel d, GpuModelOptions o);

  GpuPass pass(int64_t max_rows);
  void record_graphs();
  // Most rows of the graph that runs a step of so many rows; 0: none does.
  int64_t graph_rows(const Step& step) const;
  // Bounds of a step's launches.
  struct Most {
    int64_t rows = 0, logit_rows = 0, samples = 0;
  };
  // The launches of a step of this kind.
  void queue(StepKind kind, const Most& most);
  void queue_text(const Most& most);
  void queue_mtp(StepKind kind, const Most& most);
  void queue_head(const device::bf16* hidden, const Most& most);
  // Tokens of the rows that have a sample, logits of the others.
  void queue_results(const Step& step);
  void run_moves(const Step& step);
  void run_queued(const Step& step);
  void run_blocks(const Step& step);
  void run(const Step& step);
};

}  // namespace tandem::forward
