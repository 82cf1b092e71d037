// What host code tells gpu_moves.cu: copies between slots and kept states, and of pages.
#pragma once

#include "device/kernel_types.h"

namespace tandem::cache {

// Pieces of a kept state, in bytes from its start (kept_states.h); each begins at a multiple of 256.
struct GpuRecordLayout {
  int64_t s0, log, conv, index, head, size;
};

// One slot's S₀ of every layer, advanced over whole blocks, to another place.
struct AdvanceStatesArgs {
  const float* s0;   // [layers, heads, dim, dim]
  const float* log;  // [layers, 3, ring_rows, heads·dim]
  float* out;        // [layers, heads, dim, dim]; may be s0
  int32_t heads;
  int32_t first_block, last_block;  // s0 stands at the start of the first, out at that of the last
};

// Rows first … last − 1 by position of every matrix of a group: a ring of ring_rows rows in the slot, packed rows from
// row `first` on in the record.
struct RowGroup {
  uint8_t* ring;    // [matrices, ring_rows, row_bytes]
  uint8_t* packed;  // [matrices, packed_rows, row_bytes]
  int32_t matrices;
  int32_t packed_rows;  // of a matrix in the record
  int32_t row_bytes;    // a multiple of 4
  int32_t first, last;
};

struct MoveRowsArgs {
  static constexpr int32_t max_groups = 5;  // logs, raw convolution rows, raw index rows (text, MTP), the head row
  RowGroup groups[max_groups];
};

// The first `bytes` of page `from` to page `to`, in `planes` planes of pages.
struct PagePart {
  uint8_t* data;  // [planes, pages, page_bytes]
  int64_t page_bytes;
  int64_t plane_bytes;
  int64_t bytes;
};

struct CopyPageArgs {
  static constexpr int32_t max_parts = 4;  // latent and pooled rows, each with a second plane for some records
  PagePart parts[max_parts];
  int32_t from, to;
};

}  // namespace tandem::cache
