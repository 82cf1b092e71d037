// What host code tells rows.cu.
#pragma once

#include "ops/step_view.h"

namespace tandem::ops {

constexpr int32_t hidden_ring_rows = 32;  // rows of the ring that every slot has of hidden rows, by position

enum RowPlace : int32_t {
  row_of_step,  // row `index` of `rows`
  row_of_ring,  // position `index` in the ring of slot `slot`
  row_of_slot,  // the one row that slot `slot` has in `last`
};
struct RowSource {
  int32_t place, index, slot;
};

// out[i] = the row that sources[i] names, i < *count. Rows of width bf16 values, a multiple of 8.
struct MoveRowsArgs {
  const int32_t* count;
  const RowSource* sources;
  const device::bf16* rows;           // [.., width]
  SlotView<const device::bf16> ring;  // [hidden_ring_rows, width] a slot
  const device::bf16* last;           // [slots, width]
  device::bf16* out;
  int64_t out_stride;
  int32_t width;
};

// The last rows of every segment, at most hidden_ring_rows of them, into their slots' rings by position.
struct KeepHeadRowsArgs {
  StepView step;
  const device::bf16* rows;  // [rows of the step, width]
  SlotView<device::bf16> ring;
  int32_t width;
};

// last[slot] = the last row of the slot's segment.
struct StoreLastRowsArgs {
  StepView step;
  const device::bf16* rows;
  device::bf16* last;  // [slots, width]
  int32_t width;
};

// y += x, each sum rounded to bf16: the MTP layer's residual.
struct AddRowsArgs {
  const int32_t* rows;
  const device::bf16* x;  // [rows, width]
  device::bf16* y;
  int32_t width;
};

// Zeroes the first `width` values of the rows whose position is 0 (the embedding half of an MTP row).
struct ZeroFirstArgs {
  StepView step;
  device::bf16* rows;
  int64_t stride;
  int32_t width;
};

}  // namespace tandem::ops
