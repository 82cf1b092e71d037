// The slots in device memory: what cache/slots.h holds, with the rings of raw and hidden rows in bf16. S₀ and the logs
// are fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/slots.h"
#include "device/gpu.h"
#include "model/shape.h"
#include "ops/step_view.h"

namespace tandem::cache {

// Where the pieces of a slot lie, in bytes from its start; every piece begins at a multiple of 256. Layers of a piece
// lie one after the other.
struct GpuSlotLayout {
  GpuSlotLayout(const model::Shape& shape, int64_t kda_layers, int64_t index_layers);

  int64_t s0 = 0;     // [kda layers, heads, dim, dim] fp32
  int64_t log = 0;    // [kda layers, 3 (k, G, delta), ring_rows, heads·dim] fp32
  int64_t conv = 0;   // [kda layers, ring_rows, 3·heads·dim] bf16
  int64_t index = 0;  // [index layers, 2 (key, gate), ring_rows, index_head_dim] bf16
  int64_t head = 0;   // [ring_rows, hidden] bf16
  int64_t size = 0;
};

class GpuSlots {
 public:
  // `index_layers`: DSA layers and the MTP layer. Throws Error(does_not_fit).
  GpuSlots(device::Gpu& gpu, const model::Shape& shape, int64_t kda_layers, int64_t index_layers, int64_t slots);
  static int64_t bytes_of_slot(const model::Shape& shape, int64_t kda_layers, int64_t index_layers);

  // One layer of all slots (ops/step_view.h).
  ops::SlotView<float> s0(int64_t layer) const;
  ops::SlotView<float> log_k(int64_t layer) const { return log(layer, 0); }
  ops::SlotView<float> log_g(int64_t layer) const { return log(layer, 1); }
  ops::SlotView<float> log_delta(int64_t layer) const { return log(layer, 2); }
  ops::SlotView<device::bf16> conv_ring(int64_t layer) const;
  ops::SlotView<device::bf16> index_key_ring(int64_t layer) const;
  ops::SlotView<device::bf16> index_gate_ring(int64_t layer) const;
  ops::SlotView<device::bf16> head_ring() const;

  // Block at whose start a slot's S₀ stand (the same for all layers): SegmentView::kda_block. The host's book.
  int64_t kda_block(int64_t slot) const { return block_[static_cast<size_t>(slot)]; }
  void set_kda_block(int64_t slot, int64_t block) { block_[static_cast<size_t>(slot)] = block; }
  int64_t slots() const { return static_cast<int64_t>(block_.size()); }
  // An empty stream. Device memory needs no clearing: a segment at position 0 takes S₀ as zeros (CudaKdaBlock).
  void reset(int64_t slot) { set_kda_block(slot, 0); }

  const GpuSlotLayout& layout() const { return layout_; }
  std::byte* data(int64_t slot) const { return memory_.data() + slot * layout_.size; }

 private:
  ops::SlotView<float> log(int64_t layer, int64_t which) const;
  template <typename T>
  ops::SlotView<T> view(int64_t offset) const;

  GpuSlotLayout layout_;
  int64_t kda_width_, kda_dim_, index_width_;
  device::GpuMemory memory_;
  std::vector<int64_t> block_;
};

}  // namespace tandem::cache
