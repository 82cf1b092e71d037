// What host code tells the kernels of the feed-forward (experts_sort.cu, experts_rows.cu, experts_tiles.cu,
// experts_warpgroup.cu, experts_combine.cu).
#pragma once

#include "device/kernel_types.h"

namespace tandem::ops {

// An MLP in device memory, bf16, 16-byte aligned; widths are multiples of 8.
struct ExpertPointers {
  const void* gate;  // [width, hidden]
  const void* up;    // [width, hidden]
  const void* down;  // [hidden, width]
};

// Rows that share an MLP: pairs [first, first + rows) of a routed expert, or rows of the shared one.
struct ExpertTile {
  int32_t expert;  // counted from the first that is here
  int32_t first, rows;
};

// Pairs of a row and one of its experts, sorted by expert and, within an expert, by row.
struct ExpertSortArgs {
  static constexpr int32_t window_rows = 1024;  // that are sorted at a time
  static constexpr int32_t words_of_expert = window_rows / 32 + 1;
  static constexpr int32_t shared_bytes_of_expert = 4 * (1 + words_of_expert);
  const int32_t* rows;
  const int32_t* chosen;  // [rows, per_token], each expert at most once in a row
  int32_t per_token;
  int32_t first_routed, routed_count;  // experts that are here; pairs of others get no place
  int32_t tile_rows;                   // of a tile, at most
  int32_t* row_of;                     // out [places]
  int32_t* place_of;                   // out [rows, per_token]; -1: the expert is not here
  ExpertTile* tiles;                   // out: experts ascending; those without rows have none
  int32_t* tile_count;                 // out
};

// gate, up and the clamped SwiGLU, or down, of all tiles. The first shared_tiles tiles of a launch are the shared
// expert's (of down: those of leaf 0, then those of leaf 1), then come args.tiles.
struct ExpertProductArgs {
  const int32_t* rows;
  const ExpertTile* tiles;
  const int32_t* tile_count;
  const int32_t* row_of;         // of a place; gate and up read x by it
  const ExpertPointers* routed;  // [routed_count] in device memory
  ExpertPointers shared;
  int32_t shared_tiles, tile_rows;
  int32_t hidden, width, shared_width;
  int32_t shared_leaf;  // columns of the shared expert's leaf 0
  float swiglu_limit;
  int32_t first_output, outputs;  // of down: which of the hidden outputs
  int32_t tiles_of_block;         // experts_rows.cu: tiles of 16 outputs that a block has
  const device::bf16* x;          // [rows, hidden]
  int64_t x_stride;
  device::bf16* activation;         // [places, width]
  device::bf16* shared_activation;  // [rows, shared_width]
  float* output;                    // [places, outputs]
  float* shared_output;             // [leaves, max_rows, outputs]
  int64_t max_rows;
};

// A block of experts_tiles.cu with `rows` rows of x: how its shared memory lies.
template <int rows>
struct ExpertTileMemory {
  static constexpr int32_t weight_rows = 128, stage_columns = 64, stages = 4;
  static constexpr int32_t weight_chunk = weight_rows * 64 + 64, x_chunk = rows * 64 + 64;  // bytes of 32 columns
  static constexpr int32_t stage = 2 * (weight_chunk + x_chunk), bytes = stages * stage;
};

// A block of experts_warpgroup.cu: tiles of 64 columns (device/warpgroup.h).
struct ExpertWarpgroupMemory {
  static constexpr int32_t weight_rows = 128, rows = 128, stages = 6;
  static constexpr int32_t weight_bytes = weight_rows * 128, stage = weight_bytes + rows * 128, bytes = stages * stage;
};

struct ExpertCombineArgs {
  const int32_t* rows;
  const int32_t* chosen;    // [rows, per_token] ascending
  const float* weights;     // [rows, per_token]
  const int32_t* place_of;  // [rows, per_token]
  const float* output;      // [places, outputs]
  const float* shared_output;
  int32_t experts, per_token;
  int32_t shared_leaves[2];  // whether the shared expert has that leaf, and where: 1 + its index; 0: no
  int32_t first_leaf, end_leaf;
  int32_t first_output, outputs;
  device::bf16* y;  // [rows, hidden]: leaf 0 + leaf 1, rounded; or
  float* leaf;      // [rows, hidden]: the sum of one leaf
  int64_t y_stride;
  int64_t max_rows;
};

}  // namespace tandem::ops
