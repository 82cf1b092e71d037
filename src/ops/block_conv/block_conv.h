// The DFlash2 drafter's dynamic two-tap convolution over the rows of a block (spec/speculation.md 1.5).
#pragma once

#include <cstdint>

#include "device/threads.h"
#include "ops/rounding.h"

namespace tandem::ops {

// out[r][c] = (base[0][c] + δ[r][0][g])·in[r][c] + (base[1][c] + δ[r][1][g])·in[r − 1][c] with g = c / group_size; the
// first row of a block has no row before it. Blocks lie one after the other.
struct BlockConv {
  int64_t rows = 0, block_rows = 0;  // rows: of all blocks
  int64_t channels = 0, group_size = 0;
  const float* base = nullptr;   // [2 taps, channels]
  const float* delta = nullptr;  // [rows, 2 taps, groups] at delta_stride
  int64_t delta_stride = 0;
  const float* in = nullptr;       // [rows, channels]
  float* out = nullptr;            // [rows, channels], not the memory of `in`
  bool accumulate = false;         // added to what `out` holds: the residual
  Compute compute = Compute::f32;  // rounds what `out` holds afterwards
};
void block_conv(device::Threads& threads, const BlockConv& args);

}  // namespace tandem::ops
