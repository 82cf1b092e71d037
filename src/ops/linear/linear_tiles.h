// Which kernel and which tile a product of so many rows gets: a plain function, so that it can be tested without a GPU.
#pragma once

#include <cstdint>

namespace tandem::ops {

// One compiled shape of linear.cu (a warp reads slices on its own), of linear_tiles.cu (a block's warps share tiles) or
// of linear_warpgroup.cu (its warp groups do).
struct LinearTile {
  const char* source;
  const char* kernel;
  int32_t outputs, rows;  // of a tile
  int32_t threads;        // of a block
  int64_t shared_bytes;   // of a block
  bool by_slices;         // linear.cu
};

constexpr int32_t linear_tile_count = 10;
const LinearTile& linear_tile(int32_t index);

// The tile for a step of at most max_rows rows whose calls have `outputs` outputs in all (heads counted) on a GPU of
// this target (90), with so many multiprocessors and bytes of shared memory for a block. Few rows: small tiles of
// outputs, so that every multiprocessor streams weights; many rows: the largest tile of which there is one for every
// multiprocessor. Warp groups only where the target has their instruction.
int32_t choose_linear_tile(int64_t max_rows, int64_t outputs, int32_t target, int32_t multiprocessors,
                           int64_t shared_bytes);

// linear.cu: how many of a block's `warps` share the slices of one output tile; the others take further tiles. A power
// of two.
int32_t warps_of_linear_tile(int32_t in_features, int32_t leaf_columns, int32_t warps);

}  // namespace tandem::ops
