// Which context rows of a DFlash2 drafter are there, wherever their memory is (context_ring.h, gpu_context_ring.h).
#pragma once

#include <cstdint>
#include <vector>

#include "model/drafter.h"

namespace tandem::cache {

// Positions [first, end).
struct ContextRange {
  int64_t first = 0, end = 0;
};

class ContextBook {
 public:
  ContextBook(const model::DrafterShape& shape, int64_t slots, int64_t records);

  // A step puts `rows` rows of a stream at `position`; those below context_from leave nothing. Returns the first
  // position to be stored (position + rows: none): rows that no block can see any more are left out as well. Position 0
  // starts the slot afresh.
  int64_t begin_rows(int64_t slot, int64_t position, int64_t rows, int64_t context_from);

  // Every position from here to the end of the slot's stream has its row, as far as the ring reaches back.
  int64_t valid_from(int64_t slot) const { return valid_from_[static_cast<size_t>(slot)]; }

  // The rows before `length` that a later block can see: what goes to a record, and back. Row p of a record's layer is
  // row p − first.
  ContextRange save(int64_t slot, int64_t length, int64_t record);
  ContextRange restore(int64_t record, int64_t length, int64_t slot);

  int64_t ring_rows() const { return ring_rows_; }
  int64_t kept_rows() const { return kept_rows_; }

 private:
  int64_t ring_rows_, kept_rows_;
  std::vector<int64_t> valid_from_;         // [slots]
  std::vector<int64_t> record_valid_from_;  // [records]
};

}  // namespace tandem::cache
