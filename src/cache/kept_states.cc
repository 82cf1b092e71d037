// Layout of the records and the copies in and out.
#include "cache/kept_states.h"

#include <algorithm>

namespace tandem::cache {
namespace {

constexpr int64_t block_rows = ops::kda_block_rows;
constexpr int64_t log_rows = block_rows - 1;  // rows of the unfinished block, at most

// Rows [first, last) by position between a ring and a packed array whose row 0 is position `first`.
void from_ring(const float* ring, int64_t first, int64_t last, int64_t width, float* packed) {
  for (int64_t p = first; p < last; ++p) std::copy_n(ring + p % ring_rows * width, width, packed + (p - first) * width);
}

void to_ring(const float* packed, int64_t first, int64_t last, int64_t width, float* ring) {
  for (int64_t p = first; p < last; ++p) std::copy_n(packed + (p - first) * width, width, ring + p % ring_rows * width);
}

}  // namespace

KeptStates::Layout KeptStates::layout(const model::Shape& shape, int64_t kda_layers, int64_t index_layers) {
  const int64_t width = shape.kda_width();
  Layout l;
  l.log = kda_layers * width * shape.kda_head_dim;
  l.conv = l.log + kda_layers * 3 * log_rows * width;
  l.index = l.conv + kda_layers * (shape.short_conv_kernel_size - 1) * 3 * width;
  l.head = l.index + index_layers * 2 * (shape.index_kpool - 1) * shape.index_head_dim;
  l.size = l.head + shape.hidden_size;
  return l;
}

int64_t KeptStates::bytes_of_record(const model::Shape& shape, int64_t kda_layers, int64_t index_layers) {
  return 4 * layout(shape, kda_layers, index_layers).size;
}

KeptStates::KeptStates(const model::Shape& shape, int64_t kda_layers, int64_t index_layers, int64_t mtp_layers,
                       int64_t records)
    : kda_layers_(kda_layers),
      index_layers_(index_layers),
      mtp_layers_(mtp_layers),
      heads_(shape.kda_num_heads),
      dim_(shape.kda_head_dim),
      conv_rows_(shape.short_conv_kernel_size - 1),
      index_rows_(shape.index_kpool - 1),
      index_width_(shape.index_head_dim),
      hidden_(shape.hidden_size),
      layout_(layout(shape, kda_layers, index_layers)),
      memory_(4 * records * layout_.size, "kept states", "a smaller --kept-states-memory"),
      lengths_(static_cast<size_t>(records)) {}

KeptStates::Range KeptStates::index_range(int64_t layer, int64_t length) const {
  const bool mtp = layer >= index_layers_ - mtp_layers_;
  const int64_t next = mtp ? length - 1 : length;  // row that this layer is given next; its unfinished pool is kept
  return {next - next % (index_rows_ + 1), next};
}

void KeptStates::save(device::Threads& threads, Slots& slots, int64_t slot, int64_t length, int64_t record) {
  float* to = at(record);
  const int64_t width = heads_ * dim_, block = length / block_rows;
  threads.run(kda_layers_, [&](int64_t layer) {
    const ops::KdaState state = slots.kda(slot, layer);
    ops::kda_materialise(state, heads_, dim_, block * block_rows, to + layer * width * dim_);
    float* log = to + layout_.log + layer * 3 * log_rows * width;
    for (const float* ring : {state.log_k, state.log_g, state.log_delta}) {
      from_ring(ring, block * block_rows, length, width, log);
      log += log_rows * width;
    }
    from_ring(slots.conv_ring(slot, layer), std::max<int64_t>(0, length - conv_rows_), length, 3 * width,
              to + layout_.conv + layer * conv_rows_ * 3 * width);
  });
  for (int64_t layer = 0; layer < index_layers_; ++layer) {
    const auto [first, last] = index_range(layer, length);
    float* rows = to + layout_.index + layer * 2 * index_rows_ * index_width_;
    from_ring(slots.index_key_ring(slot, layer), first, last, index_width_, rows);
    from_ring(slots.index_gate_ring(slot, layer), first, last, index_width_, rows + index_rows_ * index_width_);
  }
  std::copy_n(slots.head_row(slot, length - 1), hidden_, to + layout_.head);
  lengths_[static_cast<size_t>(record)] = length;
}

void KeptStates::restore(device::Threads& threads, int64_t record, Slots& slots, int64_t slot) const {
  const float* from = at(record);
  const int64_t length = this->length(record), width = heads_ * dim_, block = length / block_rows;
  threads.run(kda_layers_, [&](int64_t layer) {
    const ops::KdaState state = slots.kda(slot, layer);
    std::copy_n(from + layer * width * dim_, width * dim_, state.s0);
    const float* log = from + layout_.log + layer * 3 * log_rows * width;
    for (float* ring : {state.log_k, state.log_g, state.log_delta}) {
      to_ring(log, block * block_rows, length, width, ring);
      log += log_rows * width;
    }
    to_ring(from + layout_.conv + layer * conv_rows_ * 3 * width, std::max<int64_t>(0, length - conv_rows_), length,
            3 * width, slots.conv_ring(slot, layer));
  });
  for (int64_t layer = 0; layer < index_layers_; ++layer) {
    const auto [first, last] = index_range(layer, length);
    const float* rows = from + layout_.index + layer * 2 * index_rows_ * index_width_;
    to_ring(rows, first, last, index_width_, slots.index_key_ring(slot, layer));
    to_ring(rows + index_rows_ * index_width_, first, last, index_width_, slots.index_gate_ring(slot, layer));
  }
  std::copy_n(from + layout_.head, hidden_, slots.head_row(slot, length - 1));
  slots.set_kda_block(slot, block);
}

}  // namespace tandem::cache
