// What host code tells embed.cu. Rows are multiples of 8 values, aligned to 16 bytes.
#pragma once

#include "device/kernel_types.h"

namespace tandem::ops {

struct EmbedArgs {
  const int32_t* rows;        // how many there are
  const int32_t* tokens;      // [rows]
  const device::bf16* table;  // [token_count, hidden]: the rows of tokens first_token …
  int32_t first_token, token_count;
  int32_t hidden, copies;
  device::bf16* out;  // out[r · out_stride + c · hidden + d], c < copies
  int64_t out_stride;
};

}  // namespace tandem::ops
