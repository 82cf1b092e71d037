// What host code tells block_conv.cu.
#pragma once

#include "device/kernel_types.h"

namespace tandem::ops {

struct BlockConvArgs {
  const int32_t* blocks;  // how many there are
  int32_t block_rows, channels, group_size;
  const float* base;          // [2 taps, channels]
  const device::bf16* delta;  // [rows, 2 taps, groups] at delta_stride
  int64_t delta_stride;
  const device::bf16* in;  // [rows, channels]
  device::bf16* out;       // [rows, channels], not the memory of `in`
  int32_t accumulate;      // added to what `out` holds: the residual
};

}  // namespace tandem::ops
