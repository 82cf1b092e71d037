// What host code tells rope.cu.
#pragma once

#include "device/kernel_types.h"

namespace tandem::ops {

// Heads of one projection: x [rows, heads, head_dim] at x_stride.
struct RopePart {
  const device::bf16* x;
  device::bf16* y;    // may be x
  const float* norm;  // [head_dim]: RMSNorm of a head, then its rotation; nullptr: copied as it is (values)
  int64_t x_stride, y_stride;
  int32_t heads;
};

struct RopeArgs {
  static constexpr int32_t max_parts = 16;
  const int32_t* rows;  // how many there are
  // Row r is at position positions[r / rows_of_position] + r mod rows_of_position.
  const int32_t* positions;
  int32_t rows_of_position;
  // Where row r goes: y + r·y_stride, or, in a ring of a slot, y + slots[r]·slot_stride + (position mod
  // ring_rows)·y_stride.
  const int32_t* slots;  // nullptr: no ring
  int64_t slot_stride;   // values
  int32_t ring_rows;
  float eps;
  const float* frequencies;  // [head_dim / 2]: ops::rope_frequencies()
  RopePart parts[max_parts];
};

}  // namespace tandem::ops
