// Addresses of context rows in device memory, and their queued copies.
#include "cache/gpu_context_ring.h"

#include <algorithm>

namespace tandem::cache {

GpuContextRing::GpuContextRing(device::Gpu& gpu, const model::DrafterShape& shape, int64_t slots, int64_t records)
    : gpu_(gpu),
      book_(shape, slots, records),
      layers_(shape.num_hidden_layers),
      row_values_(2 * shape.key_width()),
      ring_(gpu.allocate(slots * slot_stride() * 2, "context rows of the drafter")),
      records_(gpu.allocate(std::max<int64_t>(1, records) * layers_ * book_.kept_rows() * row_values_ * 2,
                            "kept context rows of the drafter")) {}

int64_t GpuContextRing::bytes(const model::DrafterShape& s, int64_t slots, int64_t records) {
  return s.num_hidden_layers * 2 * s.key_width() * 2 *
         (slots * s.ring_rows() + std::max<int64_t>(1, records) * s.kept_rows());
}

device::bf16* GpuContextRing::layer(int64_t number) const {
  return ring_.as<device::bf16>() + number * book_.ring_rows() * row_values_;
}

device::bf16* GpuContextRing::record_layer(int64_t record, int64_t number) const {
  return records_.as<device::bf16>() + (record * layers_ + number) * book_.kept_rows() * row_values_;
}

template <typename Copy>
void GpuContextRing::pieces(const ContextRange& range, const Copy& copy) const {
  for (int64_t p = range.first; p < range.end;) {
    const int64_t at = p % book_.ring_rows(), rows = std::min(range.end - p, book_.ring_rows() - at);
    copy(at, p - range.first, rows);
    p += rows;
  }
}

void GpuContextRing::save(int64_t slot, int64_t length, int64_t record) {
  const ContextRange range = book_.save(slot, length, record);
  for (int64_t number = 0; number < layers_; ++number) {
    pieces(range, [&](int64_t at, int64_t kept, int64_t rows) {
      gpu_.copy(record_layer(record, number) + kept * row_values_,
                layer(number) + slot * slot_stride() + at * row_values_, rows * row_values_ * 2);
    });
  }
}

void GpuContextRing::restore(int64_t record, int64_t length, int64_t slot) {
  const ContextRange range = book_.restore(record, length, slot);
  for (int64_t number = 0; number < layers_; ++number) {
    pieces(range, [&](int64_t at, int64_t kept, int64_t rows) {
      gpu_.copy(layer(number) + slot * slot_stride() + at * row_values_,
                record_layer(record, number) + kept * row_values_, rows * row_values_ * 2);
    });
  }
}

}  // namespace tandem::cache
