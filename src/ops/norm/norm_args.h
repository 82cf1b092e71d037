// What host code tells norm.cu.
#pragma once

#include "device/kernel_types.h"

namespace tandem::ops {

// Up to four norms of the same rows in one launch.
struct NormPart {
  const device::bf16* x;
  device::bf16* y;      // may be x
  const float* weight;  // [width]; nullptr: 1
  const float* bias;    // [width]: a LayerNorm; nullptr: an RMSNorm
  int64_t x_stride, y_stride;
  int32_t width;
  float eps;
};

struct NormArgs {
  static constexpr int32_t max_parts = 4;
  const int32_t* rows;  // how many there are
  NormPart parts[max_parts];
};

}  // namespace tandem::ops
