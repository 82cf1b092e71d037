// What host code tells leaves.cu: how the parts of two ranks become one value (design.md 1, "two leaves"). part[r] is
// what rank r gave; every rank has both.
#pragma once

#include "device/kernel_types.h"

namespace tandem::ops {

// y = bf16(part[0] + part[1]): a sum whose leaves two ranks have. A leaf that no rank has is nullptr and is skipped;
// one that lacks some rows only has −0 in them.
struct AddLeavesArgs {
  const int32_t* rows;   // how many there are
  const float* part[2];  // [rows, width]
  device::bf16* y;       // [rows, width]
  int32_t width;         // a multiple of 4
};

// Each embedding row from its owner: rank 1 has the tokens from first_of_second on.
struct JoinEmbeddingsArgs {
  const int32_t* rows;
  const int32_t* tokens;        // [rows]
  const device::bf16* part[2];  // [rows, hidden]; rows of the other's tokens are never read
  int32_t first_of_second;
  int32_t hidden, copies;  // hidden is a multiple of 8
  device::bf16* out;       // out[r · out_stride + c · hidden + d], c < copies
  int64_t out_stride;
};

// The columns of rank 0, then those of rank 1: logits.
struct JoinColumnsArgs {
  const int32_t* rows;
  const float* part[2];  // [rows, columns[r]]
  int32_t columns[2];
  float* out;  // [rows, columns[0] + columns[1]]
};

}  // namespace tandem::ops
