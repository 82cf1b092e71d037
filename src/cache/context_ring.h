// What the DFlash2 drafter sees of a stream's past: keys and values of its last tokens for every drafter layer, in a
// ring for each slot and in records beside the kept states (spec/speculation.md 1.4, 1.8). Rows are found by absolute
// position, so roll-back is "set length" here, too (design.md 5).
#pragma once

#include <cstdint>

#include "cache/context_book.h"
#include "device/host_memory.h"
#include "device/threads.h"
#include "model/drafter.h"
#include "ops/block_attend/block_attend.h"
#include "ops/latent/pages.h"

namespace tandem::cache {

// A row holds keys [kv heads, head_dim], then values, of one layer; a slot [layers, ring rows]; a record [layers,
// window − 1 rows], the rows before its length.
class ContextRing {
 public:
  ContextRing(const model::DrafterShape& shape, ops::CacheElement element, int64_t slots, int64_t records);
  static int64_t bytes_of_slot(const model::DrafterShape& shape, ops::CacheElement element);
  static int64_t bytes_of_record(const model::DrafterShape& shape, ops::CacheElement element);

  // ContextBook's.
  int64_t begin_rows(int64_t slot, int64_t position, int64_t rows, int64_t context_from) {
    return book_.begin_rows(slot, position, rows, context_from);
  }
  void store(int64_t slot, int64_t layer, int64_t position, const float* key, const float* value);

  int64_t valid_from(int64_t slot) const { return book_.valid_from(slot); }
  // What a block of the slot may read.
  ops::ContextRows rows(int64_t slot, int64_t layer) const;

  // The rows before `length` that a later block can see, to a record and back.
  void save(device::Threads& threads, int64_t slot, int64_t length, int64_t record);
  void restore(device::Threads& threads, int64_t record, int64_t length, int64_t slot);

 private:
  int64_t row_bytes() const { return 2 * width_ * ops::element_bytes(element_); }
  std::byte* layer(int64_t slot, int64_t number) const {
    return ring_.data() + (slot * layers_ + number) * book_.ring_rows() * row_bytes();
  }
  std::byte* record(int64_t number, int64_t of_layer) const {
    return records_.data() + (number * layers_ + of_layer) * book_.kept_rows() * row_bytes();
  }

  ContextBook book_;
  int64_t layers_, width_;
  ops::CacheElement element_;
  device::HostMemory ring_, records_;
};

}  // namespace tandem::cache
