// The launches of the drafter's attention: pieces of keys, then their merge.
#include "ops/block_attend/block_attend_cuda.h"

#include <fmt/format.h>

#include "base/error.h"

namespace tandem::ops {
namespace {

// Of the context, at most: the window may begin and end in the middle of a piece.
int64_t pieces_of(const BlockAttendArgs& args) {
  return (args.window + BlockAttendArgs::piece_keys - 2) / BlockAttendArgs::piece_keys + 1;
}
int64_t query_tiles(const BlockAttendArgs& args) {
  const int64_t queries = int64_t{args.block_rows} * (args.heads / args.kv_heads);
  return (queries + BlockAttendArgs::query_rows - 1) / BlockAttendArgs::query_rows;
}
// Queries of all pieces.
int64_t queries_of(const BlockAttendArgs& args, int64_t max_blocks) {
  return max_blocks * args.kv_heads * query_tiles(args) * (pieces_of(args) + 1) * BlockAttendArgs::query_rows;
}

}  // namespace

CudaBlockAttend::CudaBlockAttend(device::Gpu& gpu, const std::vector<std::string>& defines, int64_t head_dim)
    : gpu_(gpu),
      pieces_(gpu.load({"ops/block_attend/block_attend.cu", "block_attend_pieces", defines})),
      merge_(gpu.load({"ops/block_attend/block_attend.cu", "block_attend_merge", defines})),
      head_dim_(head_dim) {}

int64_t CudaBlockAttend::scratch_bytes(const BlockAttendArgs& args, int64_t head_dim, int64_t max_blocks) {
  return 4 * queries_of(args, max_blocks) * (2 + head_dim);
}

void CudaBlockAttend::run(BlockAttendArgs args, int64_t max_blocks, void* scratch) const {
  if (args.block_rows > BlockAttendArgs::piece_keys || args.heads % args.kv_heads != 0 || args.q_stride % 8 != 0 ||
      args.kv_stride % 8 != 0 || args.slot_stride % 8 != 0) {
    throw Error(ErrorCode::internal, "block attention",
                fmt::format("{} rows, {} heads of {} keys, strides {}, {} and {}", args.block_rows, args.heads,
                            args.kv_heads, args.q_stride, args.kv_stride, args.slot_stride),
                fmt::format("at most {} rows, whole groups, multiples of 8", BlockAttendArgs::piece_keys));
  }
  if (max_blocks == 0) return;
  args.pieces = static_cast<int32_t>(pieces_of(args));
  args.piece_sums = static_cast<float*>(scratch);
  args.piece_outputs = args.piece_sums + 2 * queries_of(args, max_blocks);
  device::Launch launch{pieces_};
  launch.threads = 128;
  launch.shared_bytes = BlockAttendArgs::row_bytes * (head_dim_ + 8) + BlockAttendArgs::score_bytes;
  launch.grid[0] = static_cast<uint32_t>(args.pieces) + 1;
  launch.grid[1] = static_cast<uint32_t>(args.kv_heads * query_tiles(args));
  launch.grid[2] = static_cast<uint32_t>(max_blocks);
  gpu_.launch(launch, args);
  launch.kernel = merge_;
  launch.threads = static_cast<uint32_t>((head_dim_ + 31) / 32 * 32);
  launch.shared_bytes = 0;
  launch.grid[0] = BlockAttendArgs::query_rows;
  gpu_.launch(launch, args);
}

device::KernelCost CudaBlockAttend::cost(const BlockAttendArgs& args, int64_t head_dim, int64_t blocks,
                                         int64_t context) {
  const int64_t rows = args.block_rows, keys = context + rows;
  return {2 * blocks * head_dim * (2 * args.kv_heads * keys + 2 * rows * args.heads),
          4 * blocks * rows * args.heads * keys * head_dim};
}

}  // namespace tandem::ops
