// The compiled tiles of matrix products and the choice among them.
#include "ops/linear/linear_tiles.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "ops/divide_up.h"
#include "ops/linear/linear_args.h"

namespace tandem::ops {
namespace {

constexpr const char* slices_source = "ops/linear/linear.cu";
constexpr const char* tiles_source = "ops/linear/linear_tiles.cu";
constexpr const char* warpgroup_source = "ops/linear/linear_warpgroup.cu";
constexpr int32_t row_bytes = 128;  // of a stage: 64 bf16 columns (weights.h)

// The warps' rings of stages, and the partial sums of two rounds.
constexpr LinearTile by_slices(const char* kernel, int32_t outputs, int32_t rows, int32_t warps, int32_t stages) {
  const int64_t ring = int64_t{stages} * (outputs + rows) * row_bytes, partials = 2LL * rows * (outputs + 4) * 4;
  return {slices_source, kernel, outputs, rows, 32 * warps, warps * (ring + partials), true};
}
// A ring of stages, and where leaf 0's sums wait.
constexpr LinearTile by_tiles(const char* kernel, int32_t outputs, int32_t rows, int32_t threads, int32_t stages,
                              bool aside, const char* source = tiles_source) {
  const int64_t shared =
      static_cast<int64_t>(stages) * (outputs + rows) * row_bytes + (aside ? 4LL * outputs * rows : 0);
  return {source, kernel, outputs, rows, threads, shared, false};
}

enum TileIndex : int32_t {
  of_16x8_wide,
  of_16x8,
  of_32x8,
  of_16x16,
  of_32x16,
  of_32x64,
  of_64x64,
  of_128x64,
  of_128x128,
  of_warpgroup
};
constexpr std::array<LinearTile, linear_tile_count> tiles{
    by_slices("linear_16x8_wide", 16, 8, 8, 4),
    by_slices("linear_16x8", 16, 8, 4, 4),
    by_slices("linear_32x8", 32, 8, 4, 4),
    by_slices("linear_16x16", 16, 16, 4, 4),
    by_slices("linear_32x16", 32, 16, 4, 3),
    by_tiles("linear_tile_32x64", 32, 64, 128, 4, false),
    by_tiles("linear_tile_64x64", 64, 64, 256, 4, false),
    by_tiles("linear_tile_128x64", 128, 64, 256, 3, false),
    by_tiles("linear_tile_128x128", 128, 128, 256, 4, true),
    by_tiles("linear_warpgroup_128x128", 128, 128, 256, 5, true, warpgroup_source),
};

}  // namespace

const LinearTile& linear_tile(int32_t index) { return tiles[static_cast<std::size_t>(index)]; }

int32_t choose_linear_tile(int64_t max_rows, int64_t outputs, int32_t target, int32_t multiprocessors,
                           int64_t shared_bytes) {
  const auto blocks = [&](int32_t tile) {
    return divide_up(outputs, linear_tile(tile).outputs) * divide_up(max_rows, linear_tile(tile).rows);
  };
  if (max_rows <= 8) {
    // With one block on a multiprocessor, more warps are needed to keep enough bytes on their way.
    if (2 * blocks(of_16x8) < 3 * multiprocessors && linear_tile(of_16x8_wide).shared_bytes <= shared_bytes)
      return of_16x8_wide;
    // Reading x costs next to nothing at one or two rows.
    return max_rows > 2 && blocks(of_32x8) >= 2 * multiprocessors ? of_32x8 : of_16x8;
  }
  if (max_rows <= 16) return blocks(of_32x16) >= 2 * multiprocessors ? of_32x16 : of_16x16;
  for (int32_t tile = target == 90 ? of_warpgroup : of_128x128; tile > of_32x64; --tile) {
    if (linear_tile(tile).shared_bytes <= shared_bytes && blocks(tile) >= multiprocessors) return tile;
  }
  return of_32x64;
}

int32_t warps_of_linear_tile(int32_t in_features, int32_t leaf_columns, int32_t warps) {
  const int64_t slices = divide_up(leaf_columns, linear_slice) + divide_up(in_features - leaf_columns, linear_slice);
  int32_t share = 1;
  while (2 * share <= std::min<int64_t>(slices, warps)) share *= 2;
  return share;
}

}  // namespace tandem::ops
