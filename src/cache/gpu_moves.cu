// Copies between slots and kept states, and of pages. Floor: every byte read and written once; a record of
// GLM-5.3-Flash at 32 heads is 71 MB of S₀ and 9 MB of rows, 36 µs.
#include "cache/gpu_moves_args.h"
#include "device/kernel.h"
#include "ops/kda_block/kda_block_steps.h"

namespace {

using namespace tandem;
using namespace tandem::device;

constexpr int32_t dim = ops::kda_dim, block_rows = ops::kda_rows_of_block, log_rows = ops::kda_log_rows;

// advance_state() of kda_block_steps.h, with the same operations in the same order, for states in memory; a thread
// four values of a row of S₀.
TANDEM_KERNEL(advance_states, cache::AdvanceStatesArgs, 128) {
  const int32_t item = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (item >= dim * dim / 4) return;
  const int32_t key = item / (dim / 4), column = item % (dim / 4) * 4, width = args.heads * dim;
  const int64_t head = blockIdx.y, layer = blockIdx.z;
  const int64_t at = ((layer * args.heads + head) * dim + key) * dim + column;
  const float* k = args.log + layer * 3 * log_rows * width + head * dim;
  const float* g = k + log_rows * width;
  const float* delta = g + log_rows * width;
  float s[4];
  ops::load_values(args.s0 + at, s);
  for (int32_t block = args.first_block; block < args.last_block; ++block) {
    const int32_t first = block * block_rows % log_rows;
    const float last = g[(first + block_rows - 1) * width + key];
    const float decay = exp_(last);
    for (int32_t c = 0; c < 4; ++c) s[c] *= decay;
    for (int32_t j = 0; j < block_rows; ++j) {
      const int32_t row = (first + j) * width;
      const float faded = ops::faded_key(k[row + key], last, g[row + key]);
      float d[4];
      ops::load_values(delta + row + column, d);
      for (int32_t c = 0; c < 4; ++c) s[c] = fma_(faded, d[c], s[c]);
    }
  }
  ops::store_values(args.out + at, s);
}

TANDEM_DEVICE void move_row(const cache::MoveRowsArgs& args, bool save) {
  const cache::RowGroup& group = args.groups[blockIdx.z];
  const int64_t matrix = blockIdx.y;
  const int32_t index = static_cast<int32_t>(blockIdx.x);
  if (matrix >= group.matrices || index >= group.last - group.first) return;
  uint8_t* in_ring = group.ring + (matrix * log_rows + (group.first + index) % log_rows) * group.row_bytes;
  uint8_t* in_packed = group.packed + (matrix * group.packed_rows + index) * group.row_bytes;
  const auto* from = reinterpret_cast<const uint32_t*>(save ? in_ring : in_packed);
  auto* to = reinterpret_cast<uint32_t*>(save ? in_packed : in_ring);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < group.row_bytes / 4; i += static_cast<int32_t>(blockDim.x))
    to[i] = from[i];
}
TANDEM_KERNEL(save_rows, cache::MoveRowsArgs, 128) { move_row(args, true); }
TANDEM_KERNEL(restore_rows, cache::MoveRowsArgs, 128) { move_row(args, false); }

template <typename T>
TANDEM_DEVICE void copy_values(const uint8_t* from, uint8_t* to, int64_t bytes) {
  const auto* source = reinterpret_cast<const T*>(from);
  auto* target = reinterpret_cast<T*>(to);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) target[i] = source[i];
}

// A part and plane for every y and z; the blocks of a row share its bytes.
TANDEM_KERNEL(copy_page, cache::CopyPageArgs, 256) {
  const cache::PagePart& part = args.parts[blockIdx.z];
  if (part.bytes == 0) return;
  uint8_t* plane = part.data + blockIdx.y * part.plane_bytes;
  const uint8_t* from = plane + args.from * part.page_bytes;
  uint8_t* to = plane + args.to * part.page_bytes;
  const int64_t sizes = part.page_bytes | part.plane_bytes | part.bytes;
  if (sizes % 16 == 0) {
    copy_values<uint4>(from, to, part.bytes);
  } else if (sizes % 4 == 0) {
    copy_values<uint32_t>(from, to, part.bytes);
  } else {
    copy_values<uint8_t>(from, to, part.bytes);
  }
}

}  // namespace
