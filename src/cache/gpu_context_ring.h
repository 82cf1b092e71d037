// The DFlash2 drafter's context rows in a GPU's memory: context_ring.h has the rules; rows are bf16.
#pragma once

#include <cstdint>

#include "cache/context_book.h"
#include "device/gpu.h"
#include "model/drafter.h"

namespace tandem::cache {

class GpuContextRing {
 public:
  GpuContextRing(device::Gpu& gpu, const model::DrafterShape& shape, int64_t slots, int64_t records);
  static int64_t bytes(const model::DrafterShape& shape, int64_t slots, int64_t records);

  ContextBook& book() { return book_; }
  const ContextBook& book() const { return book_; }

  // Ring row of a layer of slot 0; slots lie slot_stride() values apart. A row has keys, then values: row_values().
  device::bf16* layer(int64_t number) const;
  int64_t slot_stride() const { return layers_ * book_.ring_rows() * row_values_; }
  int64_t row_values() const { return row_values_; }

  // Queued copies.
  void save(int64_t slot, int64_t length, int64_t record);
  void restore(int64_t record, int64_t length, int64_t slot);

 private:
  // The rows of a range that lie in one piece of the ring: copy(ring row, row of the record, rows).
  template <typename Copy>
  void pieces(const ContextRange& range, const Copy& copy) const;
  device::bf16* record_layer(int64_t record, int64_t number) const;

  device::Gpu& gpu_;
  ContextBook book_;
  int64_t layers_, row_values_;
  device::GpuMemory ring_, records_;
};

}  // namespace tandem::cache
