// One forward pass on a GPU: what the layers share while its launches are queued, and the three sub-layers. What
// differs from step to step lies in device memory; max_rows and max_segments only bound the launches, so a recorded
// pass serves every step that they bound.
#pragma once

#include "cache/gpu_pool.h"
#include "cache/gpu_slots.h"
#include "forward/gpu_group.h"
#include "forward/gpu_ops.h"
#include "forward/gpu_scratch.h"
#include "forward/gpu_weights.h"
#include "forward/step.h"
#include "model/shape.h"

namespace tandem::forward {

struct GpuPass {
  const GpuOps& ops;
  const model::Shape& shape;
  const GpuScratch& scratch;
  const cache::GpuPool& pool;
  const cache::GpuSlots& slots;
  GpuGroup& group;
  ops::StepView step;
  int64_t max_rows = 0, max_segments = 0;
  // The MTP layer's shared selection (spec/model.md 6.4): rows leave theirs to their chain, or a chain's rows reuse it.
  enum class Selection { own, leave, reuse } selection = Selection::own;

  const int32_t* rows() const { return step.counts + ops::step_rows; }
};

// scratch.x [rows, hidden], normed input, to scratch.y.
void kda_attention(const GpuPass& pass, const GpuLayer& layer);  // spec/model.md 3
void dsa_attention(const GpuPass& pass, const GpuLayer& layer);  // 4
void feed_forward(const GpuPass& pass, const GpuLayer& layer);   // 5

}  // namespace tandem::forward
