// One rank's share of a model with random weights that are made on the device, its caches and a step: what the forward
// pass needs to queue real work without a checkpoint. Every matrix of every layer is its own memory, so that layers in
// turn find no weights in the cache; routed experts alone are shared by all layers, each with another order of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/gpu_pool.h"
#include "cache/gpu_slots.h"
#include "forward/gpu_group.h"
#include "forward/gpu_ops.h"
#include "forward/gpu_pass.h"
#include "forward/gpu_step.h"
#include "forward/gpu_weights.h"
#include "traced_gpu.h"

namespace tandem::bench {

// GLM-5.3-Flash (spec/model.md 1), or what one of two ranks has of it: half of the heads and of the dense widths.
model::Shape glm_shape(int64_t ranks);
// The same kinds of layers at sizes that the emulator runs in a moment.
model::Shape tiny_shape();

class SyntheticRank {
 public:
  // held_experts: routed experts of each layer that are here; shared_width: of the shared expert.
  SyntheticRank(device::Gpu& gpu, const model::Shape& shape, int64_t held_experts, int64_t shared_width, int64_t leaves,
                const forward::Capacity& capacity);

  // A step of `streams` streams with so many rows each, all at `position`, logits of each stream's last row.
  void set_step(int64_t streams, int64_t rows, int64_t position);
  forward::GpuPass pass() const;

  // What stands between sub-layers, and the sub-layers; `layer` of the model.
  void enter(int64_t layer) const;
  void attention(int64_t layer) const;
  void to_feed_forward(int64_t layer) const;  // leave and enter
  void feed_forward(int64_t layer) const;
  void to_attention(int64_t layer) const;  // leave and enter of layer + 1; the last layer's: leave
  void head() const;                       // mean, norm, logits
  void whole_step() const;

  std::vector<int32_t> chosen() const;  // experts of the last feed_forward: [rows, per_token]
  ops::ExpertShape moe_shape() const;

  mutable TracedGpu gpu;  // queueing changes nothing of a rank
  model::Shape shape;
  forward::Capacity capacity;
  forward::GpuOps ops;
  int64_t held, shared_width, leaves;
  int64_t streams = 1, rows = 1, position = 0;  // of the step: rows in all

 private:
  struct Arena;
  forward::GpuLayer make_layer(Arena& arena, int64_t number, int64_t state_layer) const;
  void lay_out(Arena& arena);
  void fill(void* data, int64_t bytes, uint32_t keep, uint32_t add, uint32_t seed) const;
  ops::CudaMhcRows mhc() const;

  device::Kernel fill_;
  device::GpuMemory ones_, weights_, tables_, activations_;
  std::vector<forward::GpuLayer> layers_;
  std::vector<ops::ExpertPointers> experts_;
  ops::CudaMatrix embed_{}, head_{};
  cache::GpuPool pool_;
  cache::GpuSlots slots_;
  mutable forward::GpuGroup group_{shape, {}, nullptr};  // a rank alone: exchanges are not measured
  forward::GpuStep step_;
  forward::GpuScratch scratch_{};
};

}  // namespace tandem::bench
