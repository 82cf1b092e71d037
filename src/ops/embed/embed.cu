// Rows of bf16 values that a step copies (embed_args.h). A block a row, 16 bytes a thread and turn. Floor: the rows
// read and written once, which at one row is nothing beside the launch.
#include "device/kernel.h"
#include "ops/embed/embed_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;
using namespace tandem::ops;

TANDEM_KERNEL(embed_rows, EmbedArgs, 256) {
  const int64_t row = blockIdx.x;
  if (row >= *args.rows) return;
  const int32_t index = args.tokens[row] - args.first_token;
  if (index < 0 || index >= args.token_count) return;
  const bf16* from = args.table + static_cast<int64_t>(index) * args.hidden;
  bf16* to = args.out + row * args.out_stride;
  for (int32_t at = static_cast<int32_t>(threadIdx.x) * 8; at < args.hidden;
       at += static_cast<int32_t>(blockDim.x) * 8) {
    const uint4 values = *reinterpret_cast<const uint4*>(from + at);
    for (int32_t copy = 0; copy < args.copies; ++copy)
      *reinterpret_cast<uint4*>(to + static_cast<int64_t>(copy) * args.hidden + at) = values;
  }
}

}  // namespace
