// Which kernel a product gets.
#include "ops/linear/linear_tiles.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::ops::linear_tiles_test {
namespace {

constexpr int64_t h200_shared = 227 << 10, small_shared = 99 << 10;

std::string chosen(int64_t rows, int64_t outputs, int64_t shared = h200_shared) {
  return linear_tile(choose_linear_tile(rows, outputs, 90, 132, shared)).kernel;
}

TEST(LinearTiles, FewRowsStreamWeights) {
  EXPECT_EQ(chosen(1, 12576), "linear_16x8");
  EXPECT_EQ(chosen(1, 2336), "linear_16x8_wide");
  EXPECT_EQ(chosen(8, 288), "linear_16x8_wide");
  EXPECT_EQ(chosen(1, 288, small_shared), "linear_16x8");
  EXPECT_EQ(chosen(8, 12576), "linear_32x8");
  EXPECT_EQ(chosen(8, 4096), "linear_16x8");  // 128 tiles of 32 outputs would leave half of the GPU idle
  EXPECT_EQ(chosen(9, 12576), "linear_32x16");
  EXPECT_EQ(chosen(16, 4096), "linear_16x16");
}

TEST(LinearTiles, ManyRowsTakeTheLargestTileThatFillsTheGpu) {
  EXPECT_EQ(chosen(17, 4096), "linear_tile_32x64");
  EXPECT_EQ(chosen(64, 12576), "linear_tile_64x64");
  EXPECT_EQ(chosen(2048, 4096), "linear_warpgroup_128x128");
  EXPECT_STREQ(linear_tile(choose_linear_tile(2048, 4096, 120, 132, h200_shared)).kernel, "linear_tile_128x128");
  EXPECT_EQ(chosen(256, 4096), "linear_tile_64x64");
  EXPECT_EQ(chosen(8192, 24), "linear_tile_32x64");
}

TEST(LinearTiles, SharedMemoryOfTheGpuIsEnough) {
  EXPECT_EQ(chosen(2048, 4096, small_shared), "linear_tile_128x64");
  for (const int64_t rows : {1, 2, 3, 8, 9, 16, 17, 64, 65, 300, 8192}) {
    for (const int64_t outputs : {2, 32, 1000, 4096, 200000}) {
      for (const int64_t shared : {h200_shared, small_shared}) {
        const LinearTile& tile = linear_tile(choose_linear_tile(rows, outputs, 90, 132, shared));
        EXPECT_LE(tile.shared_bytes, shared) << tile.kernel;
        EXPECT_TRUE(!tile.by_slices || rows <= tile.rows) << tile.kernel << " for " << rows;
      }
    }
  }
}

TEST(LinearTiles, WarpsShareATileWhileThereAreSlices) {
  EXPECT_EQ(warps_of_linear_tile(128, 128, 4), 1);
  EXPECT_EQ(warps_of_linear_tile(512, 512, 4), 1);
  EXPECT_EQ(warps_of_linear_tile(512, 256, 4), 2);  // two leaves
  EXPECT_EQ(warps_of_linear_tile(1536, 1536, 4), 2);
  EXPECT_EQ(warps_of_linear_tile(4096, 4096, 4), 4);
  EXPECT_EQ(warps_of_linear_tile(4096, 4096, 8), 8);
  EXPECT_EQ(warps_of_linear_tile(8, 0, 8), 1);
}

}  // namespace
}  // namespace tandem::ops::linear_tiles_test
