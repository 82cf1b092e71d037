// Layout of a slot and the views of its pieces.
#include "cache/gpu_slots.h"

namespace tandem::cache {
namespace {

constexpr int64_t piece_alignment = 256;

}  // namespace

GpuSlotLayout::GpuSlotLayout(const model::Shape& shape, int64_t kda_layers, int64_t index_layers) {
  const int64_t width = shape.kda_width();
  const auto add = [&](int64_t bytes) {
    const int64_t at = size;
    size = (size + bytes + piece_alignment - 1) / piece_alignment * piece_alignment;
    return at;
  };
  s0 = add(4 * kda_layers * width * shape.kda_head_dim);
  log = add(4 * kda_layers * 3 * ring_rows * width);
  conv = add(2 * kda_layers * ring_rows * 3 * width);
  index = add(2 * index_layers * 2 * ring_rows * shape.index_head_dim);
  head = add(2 * ring_rows * shape.hidden_size);
}

GpuSlots::GpuSlots(device::Gpu& gpu, const model::Shape& shape, int64_t kda_layers, int64_t index_layers, int64_t slots)
    : layout_(shape, kda_layers, index_layers),
      kda_width_(shape.kda_width()),
      kda_dim_(shape.kda_head_dim),
      index_width_(shape.index_head_dim),
      memory_(gpu.allocate(slots * layout_.size, "slots")),
      block_(static_cast<size_t>(slots)) {
  gpu.fill(memory_.data(), 0, memory_.size());  // what a kernel reads and masks away must not be NaN
}

int64_t GpuSlots::bytes_of_slot(const model::Shape& shape, int64_t kda_layers, int64_t index_layers) {
  return GpuSlotLayout(shape, kda_layers, index_layers).size;
}

template <typename T>
ops::SlotView<T> GpuSlots::view(int64_t offset) const {
  return {reinterpret_cast<T*>(memory_.data() + offset), layout_.size / static_cast<int64_t>(sizeof(T))};
}

ops::SlotView<float> GpuSlots::s0(int64_t layer) const {
  return view<float>(layout_.s0 + 4 * layer * kda_width_ * kda_dim_);
}
ops::SlotView<float> GpuSlots::log(int64_t layer, int64_t which) const {
  return view<float>(layout_.log + 4 * (layer * 3 + which) * ring_rows * kda_width_);
}
ops::SlotView<device::bf16> GpuSlots::conv_ring(int64_t layer) const {
  return view<device::bf16>(layout_.conv + 2 * layer * ring_rows * 3 * kda_width_);
}
ops::SlotView<device::bf16> GpuSlots::index_key_ring(int64_t layer) const {
  return view<device::bf16>(layout_.index + 2 * layer * 2 * ring_rows * index_width_);
}
ops::SlotView<device::bf16> GpuSlots::index_gate_ring(int64_t layer) const {
  return view<device::bf16>(layout_.index + 2 * (layer * 2 + 1) * ring_rows * index_width_);
}
ops::SlotView<device::bf16> GpuSlots::head_ring() const { return view<device::bf16>(layout_.head); }

}  // namespace tandem::cache
