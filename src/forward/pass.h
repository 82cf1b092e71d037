// One forward pass: what the layers share while a step runs, and the three sub-layers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "cache/slots.h"
#include "cache/token_pool.h"
#include "device/threads.h"
#include "forward/group.h"
#include "forward/mutation.h"
#include "forward/probe.h"
#include "forward/scratch.h"
#include "forward/step.h"
#include "model/shape.h"
#include "model/weights.h"
#include "ops/experts/experts.h"

namespace tandem::forward {

// Weights in the form that the operations want: made once from this rank's part of the checkpoint's.
struct PreparedLayer {
  const model::LayerWeights* weights = nullptr;
  std::vector<float> conv_taps;    // KDA: [kernel, 3·heads·dim]
  std::vector<float> rate;         // KDA: [heads] exp(A_log)
  std::vector<float> kv_b_values;  // DSA: kv_b_proj decoded, if it is stored in a coded format
  model::Matrix kv_b;              // DSA
  std::vector<ops::Mlp> routed;    // MoE
  ops::Mlp shared;                 // the shared expert or the dense MLP
  bool has_shared = false;
  int64_t state_layer = 0;  // index among the KDA layers, or among the layers with token caches
};
PreparedLayer prepare_layer(const model::LayerWeights& weights, const model::Shape& shape, int64_t state_layer);

// What the MTP layer's rows of a round select (spec/model.md 6.4): the last absorbed row's choice, to which the rows of
// the chain add themselves. By slot.
struct SharedSelection {
  int32_t* selected = nullptr;  // [slots, Scratch::max_selected]
  int32_t* counts = nullptr;    // [slots]
  bool reuse = false;           // rows are of a chain; else the last row of each segment leaves its selection
};

// `shape` is the rank's (model::shape_of_rank).
struct Pass {
  device::Threads& threads;
  const model::Shape& shape;
  const Step& step;
  Scratch& scratch;
  ops::ExpertScratch& expert_scratch;
  cache::TokenPool& pool;
  cache::Slots& slots;
  Probe* probe;
  Mutation mutation;
  Group group;
  device::Threads& one_thread;  // the caller alone: for work inside a parallel region
  Compute compute = Compute::f32;
  SharedSelection shared_selection = {};  // of the MTP layer, where there is one

  int64_t rows() const { return static_cast<int64_t>(step.tokens.size()); }
};

// Who does the work of a segment: all threads, with the scratch of all lanes, or one of them, with the scratch of its
// own.
struct Worker {
  device::Threads& threads;
  int64_t lane;
};

// Calls body(segment, worker) for every segment. A prompt gets all threads; of several streams with a few rows each
// every thread takes its share, in one parallel region: eight streams would else need eight regions, each too short to
// share.
template <typename Body>
void for_segments(const Pass& pass, const Body& body) {
  constexpr int64_t few_rows = 16;
  const auto is_short = [](const Segment& segment) { return segment.rows <= few_rows; };
  int64_t short_ones = 0;
  for (const Segment& segment : pass.step.segments) short_ones += is_short(segment) ? 1 : 0;
  const int64_t lanes = std::min<int64_t>(pass.threads.count(), short_ones);
  for (const Segment& segment : pass.step.segments) {
    if (lanes < 2 || !is_short(segment)) body(segment, Worker{pass.threads, 0});
  }
  if (lanes < 2) return;
  std::atomic<size_t> next{0};  // a lane that is held up leaves its segments to the others
  pass.threads.run(lanes, [&](int64_t lane) {
    const std::vector<Segment>& segments = pass.step.segments;
    for (size_t i = next.fetch_add(1); i < segments.size(); i = next.fetch_add(1)) {
      if (is_short(segments[i])) body(segments[i], Worker{pass.one_thread, lane});
    }
  });
}

// Sub-layers: x [rows, hidden] normed input, y [rows, hidden] output. `layer` is the model's layer number, for the
// probe.
void kda_attention(const Pass& pass, const PreparedLayer& layer, int64_t number, const float* x, float* y);  // spec 3
void dsa_attention(const Pass& pass, const PreparedLayer& layer, int64_t number, const float* x, float* y);  // spec 4
void feed_forward(const Pass& pass, const PreparedLayer& layer, int64_t number, const float* x, float* y);   // spec 5

}  // namespace tandem::forward
