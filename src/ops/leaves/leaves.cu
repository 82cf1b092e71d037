// The parts of two ranks put together (leaves_args.h); a block a row and 1,024 columns. Floor: both parts read once and
// the result written; of 64 rows of 4,096 values 2.6 MB, 0.6 µs at 4.4 TB/s, so the launch is what costs.
#include "device/kernel.h"
#include "ops/leaves/leaves_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;

TANDEM_KERNEL(add_leaves, ops::AddLeavesArgs, 256) {
  const int64_t row = blockIdx.x;
  const int32_t column = static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x) * 4;
  if (row >= *args.rows || column >= args.width) return;
  const int64_t at = row * args.width + column;
  const float* only = args.part[0] != nullptr ? args.part[0] : args.part[1];
  float4 y = *reinterpret_cast<const float4*>(only + at);
  if (args.part[0] != nullptr && args.part[1] != nullptr) {
    const float4 second = *reinterpret_cast<const float4*>(args.part[1] + at);
    y = make_float4(y.x + second.x, y.y + second.y, y.z + second.z, y.w + second.w);
  }
  *reinterpret_cast<uint2*>(args.y + at) = make_uint2(pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
}

TANDEM_KERNEL(join_embeddings, ops::JoinEmbeddingsArgs, 256) {
  const int64_t row = blockIdx.x;
  if (row >= *args.rows) return;
  const bf16* from = (args.tokens[row] < args.first_of_second ? args.part[0] : args.part[1]) + row * args.hidden;
  bf16* to = args.out + row * args.out_stride;
  for (int32_t at = static_cast<int32_t>(threadIdx.x) * 8; at < args.hidden;
       at += static_cast<int32_t>(blockDim.x) * 8) {
    const uint4 values = *reinterpret_cast<const uint4*>(from + at);
    for (int32_t copy = 0; copy < args.copies; ++copy)
      *reinterpret_cast<uint4*>(to + static_cast<int64_t>(copy) * args.hidden + at) = values;
  }
}

TANDEM_KERNEL(join_columns, ops::JoinColumnsArgs, 256) {
  const int64_t row = blockIdx.x;
  if (row >= *args.rows) return;
  const int32_t all = args.columns[0] + args.columns[1];
  const int32_t first = static_cast<int32_t>(blockIdx.y) * 1024;
  for (int32_t column = first + static_cast<int32_t>(threadIdx.x); column < all && column < first + 1024;
       column += static_cast<int32_t>(blockDim.x)) {
    const int32_t of = column < args.columns[0] ? 0 : 1;
    const int32_t own = column - of * args.columns[0];
    args.out[row * all + column] = args.part[of][row * args.columns[of] + own];
  }
}

}  // namespace
