// What the kernels for many rows share: the columns in the order of the sum, which tile a block has, and how its
// results leave. Kernel code.
#pragma once

#include "ops/linear/weights.h"

namespace tandem::ops {

// Columns in the order of the sum, 64 at a time: chunks end where slices and leaves end.
struct Chunk {
  int32_t column, slice_end, leaf_end;
};
TANDEM_DEVICE void start_slice(Chunk& chunk) {
  const int32_t end = chunk.column + linear_slice;
  chunk.slice_end = end < chunk.leaf_end ? end : chunk.leaf_end;
}
TANDEM_DEVICE Chunk first_chunk(const CudaMatrix& w) {
  Chunk chunk{0, 0, w.leaf_columns > 0 ? w.leaf_columns : w.in_features};
  start_slice(chunk);
  return chunk;
}
TANDEM_DEVICE bool ends_slice(const Chunk& chunk) { return chunk.column + tile_columns >= chunk.slice_end; }
TANDEM_DEVICE void advance(Chunk& chunk, const CudaMatrix& w) {
  chunk.column += tile_columns;
  if (chunk.column < chunk.slice_end) return;
  chunk.column = chunk.slice_end;
  if (chunk.column == chunk.leaf_end) chunk.leaf_end = w.in_features;
  start_slice(chunk);
}

constexpr int32_t row_tiles_together = 16;

// Blocks of a part: heads, groups of row tiles, output tiles, row tiles of the group.
struct TilePlace {
  int32_t head, output_tile, row_tile;
};
TANDEM_DEVICE TilePlace place_of_block(int32_t block, int32_t tiles, int32_t row_tiles) {
  const int32_t of_head = tiles * row_tiles, of_group = tiles * row_tiles_together;
  const int32_t inside = block % of_head, group = inside / of_group, in_group = inside % of_group;
  const int32_t left = row_tiles - group * row_tiles_together;
  const int32_t together = left < row_tiles_together ? left : row_tiles_together;
  return {block / of_head, in_group / together, group * row_tiles_together + in_group % together};
}

// Writes a block's results, which lie in shared memory as fp32 [rows][outputs] with `Pitch` between rows.
template <int Outputs, int Rows, int Threads, int Pitch>
TANDEM_DEVICE void store_tile(const LinearArgs::Part& part, const float* results, int64_t y_offset, int32_t first_row,
                              int32_t rows, int32_t first_output) {
  const CudaLinearCall& call = part.call;
  constexpr int32_t fours = Outputs / 4;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < Rows * fours; i += Threads) {
    const int32_t row = i / fours, column = i % fours * 4;
    if (first_row + row >= rows) break;  // rows only grow with i
    const float* from = results + row * Pitch + column;
    const int64_t at = y_offset + (first_row + row) * call.y_stride + first_output + column;
    if (part.wide_stores) {
      if (first_output + column >= call.matrix.out_features) continue;
      if (call.y_is_fp32) {
        *reinterpret_cast<float4*>(static_cast<float*>(call.y) + at) = make_float4(from[0], from[1], from[2], from[3]);
      } else {
        *reinterpret_cast<uint2*>(static_cast<bf16*>(call.y) + at) =
            make_uint2(device::pack_bf16(from[0], from[1]), device::pack_bf16(from[2], from[3]));
      }
    } else {
      for (int32_t k = 0; k < 4 && first_output + column + k < call.matrix.out_features; ++k)
        store_output(call, at + k, from[k]);
    }
  }
}

}  // namespace tandem::ops
