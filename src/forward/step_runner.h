// The forward pass as its users see it, so that tests drive the engine and the drafters with a model of their own.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "forward/step.h"
#include "ops/sample/sample_args.h"

namespace tandem::forward {

// What a dflash2 step gives for each of its segments, in their order: for each draft row r = 1 … block_size − 1 the
// top_k candidates by the head's logit (value descending, ties to the smaller id) and the selector's edges
// (spec/speculation.md 1.6). A path is walked from them without the model.
struct DraftLattices {
  int64_t streams = 0, rows = 0, top_k = 0;  // rows: block_size − 1
  std::span<const int32_t> ids;              // [streams, rows, top_k]
  std::span<const float> unary;              // [streams, rows, top_k]
  std::span<const float> edges;  // [streams, rows, top_k (predecessor: candidate of the row before), top_k]: Σ_j
                                 // A[prev][j]·g[r][j]·B[cand][j]; in row 0 every predecessor is the pending token
};

// What a model on a GPU has done since it was made. Promise 5 (design.md 1): after ready the first two stay.
struct RunnerCounts {
  int64_t allocations = 0, kernels_loaded = 0;  // of the whole device (device/gpu.h)
  int64_t graph_steps = 0, launched_steps = 0;
  int64_t result_bytes = 0;  // results of steps that were copied to the host
};

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Runs the step; an exception means that the model's state can no longer be trusted.
  virtual void run(const Step& step) = 0;
  // [logit_rows + head_slots − samples, vocab_size] of the last run: of the text model's head, or of the MTP layer's.
  // Rows that have a sample are left out.
  virtual std::span<const float> logits() const = 0;
  // Of the last run, one for each of Step::samples.
  virtual std::span<const ops::Sampled> sampled() const { return {}; }
  // Of the last run if it was a dflash2 step.
  virtual DraftLattices lattices() const { return {}; }
  // Where the last step, which is `step`, left a NaN or an infinity in its streams' states or hidden rows; empty:
  // nowhere, or it was no text step. Slow: for --check-numerics.
  virtual std::string not_finite(const Step& /*step*/) { return {}; }
  // Of a model on a GPU; zeros on a CPU.
  virtual RunnerCounts counts() const { return {}; }
};

}  // namespace tandem::forward
