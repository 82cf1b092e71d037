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
  device::PinnedMemory host_logits;
  std::unique_ptr<GpuDflash2> drafter;                           // may be none
  std::map<std::pair<StepKind, int64_t>, device::Graph> graphs;  // by the most rows, or blocks, of a step
  std::vector<int64_t> kda_blocks;                               // [slots] before the step
  int64_t rows = 0, logit_rows = 0;                              // of the last text step, of the last run
  int64_t graph_steps = 0, launched_steps = 0;

  // `whole` and `w`: of all ranks.
  State(device::Gpu& g, const model::Shape& whole, const model::TextWeights& w, const Capacity& c,
        const GpuGroup& ranks, DrafterModel d, GpuModelOptions o);

  GpuPass pass(int64_t max_rows);
  void record_graphs();
  // Most rows of the graph that runs a step of so many rows; 0: none does.
  int64_t graph_rows(const Step& step) const;
  // The launches of a step of this kind with at most so many rows and logit rows.
  void queue(StepKind kind, int64_t max_rows, int64_t max_logit_rows);
  void queue_text(int64_t max_rows, int64_t max_logit_rows);
  void queue_mtp(StepKind kind, int64_t max_rows, int64_t max_logit_rows);
  void queue_head(const device::bf16* hidden, int64_t max_logit_rows);
  void run_moves(const Step& step);
  void run_queued(const Step& step);
  void run_blocks(const Step& step);
  void run(const Step& step);
};

}  // namespace tandem::forward
