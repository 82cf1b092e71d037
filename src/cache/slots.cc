// Sizes, addresses and moves of the fixed slots.
#include "cache/slots.h"

#include <algorithm>

namespace tandem::cache {

Slots::Slots(const model::Shape& shape, int64_t kda_layers, int64_t index_layers, int64_t slots)
    : kda_layers_(kda_layers),
      index_layers_(index_layers),
      heads_(shape.kda_num_heads),
      dim_(shape.kda_head_dim),
      index_width_(shape.index_head_dim),
      hidden_(shape.hidden_size),
      block_(static_cast<size_t>(slots)) {
  const int64_t states = slots * kda_layers;
  s0_.resize(static_cast<size_t>(states * heads_ * dim_ * dim_));
  log_.resize(static_cast<size_t>(states * 3 * ring_rows * heads_ * dim_));
  conv_.resize(static_cast<size_t>(states * ring_rows * 3 * heads_ * dim_));
  index_.resize(static_cast<size_t>(slots * index_layers * 2 * ring_rows * index_width_));
  head_.resize(static_cast<size_t>(slots * ring_rows * hidden_));
}

int64_t Slots::bytes_of_slot(const model::Shape& shape, int64_t kda_layers, int64_t index_layers) {
  const int64_t width = shape.kda_width();
  return 4 * (kda_layers * width * (shape.kda_head_dim + 6 * ring_rows) +
              index_layers * 2 * ring_rows * shape.index_head_dim + ring_rows * shape.hidden_size);
}

ops::KdaState Slots::kda(int64_t slot, int64_t layer) {
  const int64_t state = slot * kda_layers_ + layer, rows = ring_rows * heads_ * dim_;
  float* log = log_.data() + state * 3 * rows;
  return {s0_.data() + state * heads_ * dim_ * dim_, log, log + rows, log + 2 * rows, ring_rows, kda_block(slot)};
}

float* Slots::conv_ring(int64_t slot, int64_t layer) {
  return conv_.data() + (slot * kda_layers_ + layer) * ring_rows * 3 * heads_ * dim_;
}

float* Slots::index_key_ring(int64_t slot, int64_t layer) {
  return index_.data() + (slot * index_layers_ + layer) * 2 * ring_rows * index_width_;
}

float* Slots::index_gate_ring(int64_t slot, int64_t layer) {
  return index_key_ring(slot, layer) + ring_rows * index_width_;
}

float* Slots::head_row(int64_t slot, int64_t position) {
  return head_.data() + (slot * ring_rows + position % ring_rows) * hidden_;
}

void Slots::reset(int64_t slot) {
  const int64_t size = kda_layers_ * heads_ * dim_ * dim_;
  std::fill_n(s0_.begin() + slot * size, size, 0.0f);
  set_kda_block(slot, 0);
}

}  // namespace tandem::cache
