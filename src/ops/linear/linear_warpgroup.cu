// y = W x for very many rows: a block's two warp groups have 64 outputs each and share 128 rows; the tensor cores read
// both tiles from shared memory themselves (device/warpgroup.h), so that neither fragments nor their loads stand
// between the products. The arithmetic is linear_tiles.cu's. Floor: 2 · rows · out · in operations / 800 TFLOP/s.
//
// A ring of stages by cp.async. While the products of a stage run, the one before may still be running; the copies that
// start then go to the place of the one before that. Leaf 0's sums wait in shared memory.
#include "ops/linear/tiles.h"

namespace {

using namespace tandem;
using namespace tandem::device;
using namespace tandem::ops;

constexpr int32_t outputs = 128, tile_rows = 128, stages = 5, threads = 256;
constexpr int32_t weight_bytes = outputs * tile_row_bytes, stage_bytes = weight_bytes + tile_rows * tile_row_bytes;
constexpr int32_t pitch = outputs + 4;  // fp32 results, transposed: four banks from row to row
static_assert(tile_rows * pitch * 4 <= stages * stage_bytes, "results take the place of the stages");

TANDEM_KERNEL(linear_warpgroup_128x128, LinearArgs, 256) {
  TANDEM_SHARED_TILES(shared);
  const int32_t rows = *args.rows;
  const LinearArgs::Part& part = part_of_block(args);
  const CudaLinearCall& call = part.call;
  const TilePlace place =
      place_of_block(static_cast<int32_t>(blockIdx.x) - part.first_block, part.tiles, args.row_tiles);
  const int32_t first_row = place.row_tile * tile_rows, first_output = place.output_tile * outputs;
  if (first_row >= rows) return;
  const bf16* weights = call.matrix.data + place.head * call.w_batch_stride;
  const bf16* x = call.x + place.head * call.x_batch_stride;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = threadIdx.x / 128;

  Chunk next = first_chunk(call.matrix);
  int32_t next_stage = 0;
  const auto copy_next = [&] {
    if (next.column < call.matrix.in_features) {
      unsigned char* stage = shared + next_stage * stage_bytes;
      copy_weights<outputs, threads>(Bf16Weights{}, stage, call.matrix, weights, first_output, next.column,
                                     next.slice_end, threadIdx.x);
      copy_rows<tile_rows, threads>(stage + weight_bytes, x, call.x_stride, first_row, rows, next.column,
                                    next.slice_end, threadIdx.x);
      advance(next, call.matrix);
    }
    commit_copies();
    next_stage = next_stage + 1 == stages ? 0 : next_stage + 1;
  };
#pragma unroll
  for (int32_t i = 0; i < stages - 2; ++i) copy_next();

  WarpgroupSums slice, sums;
#pragma unroll
  for (int32_t n = 0; n < 16; ++n)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) slice[n][i] = sums[n][i] = 0.0f;
  float* aside = reinterpret_cast<float*>(shared + stages * stage_bytes) + threadIdx.x;
  bool has_aside = false;

  int32_t stage_number = 0;
  Chunk at = first_chunk(call.matrix);
  while (at.column < call.matrix.in_features) {
    const int32_t steps = (at.slice_end - at.column + tile_columns - 1) / tile_columns;
    const bool leaf_ends = at.slice_end == at.leaf_end && at.leaf_end < call.matrix.in_features;
#pragma unroll 1
    for (int32_t step = 0; step < steps; ++step) {
      wait_for_copies<stages - 3>();
      publish_tiles();
      finish_all_but_one();
      __syncthreads();  // everybody's copies have landed, and nobody reads the stage before the last one
      const unsigned char* stage = shared + stage_number * stage_bytes;
      stage_number = stage_number + 1 == stages ? 0 : stage_number + 1;
      start_products<ColumnOrder::natural>(slice, stage + group * 64 * tile_row_bytes, stage + weight_bytes, step == 0);
      copy_next();
      advance(at, call.matrix);
    }
    finish_products(slice);
#pragma unroll
    for (int32_t n = 0; n < 16; ++n)
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) sums[n][i] += slice[n][i];
    if (!leaf_ends) continue;
    has_aside = true;
#pragma unroll
    for (int32_t n = 0; n < 16; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        aside[(n * 4 + i) * threads] = sums[n][i];
        sums[n][i] = 0.0f;
      }
    }
  }

  wait_for_copies<0>();
  __syncthreads();
  float* results = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int32_t n = 0; n < 16; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const float value = has_aside ? aside[(n * 4 + i) * threads] + sums[n][i] : sums[n][i];
      const uint32_t row = 8 * static_cast<uint32_t>(n) + lane % 4 * 2 + static_cast<uint32_t>(i % 2);
      results[row * pitch + warp * 16 + lane / 4 + static_cast<uint32_t>(i / 2 * 8)] = value;
    }
  }
  __syncthreads();
  store_tile<outputs, tile_rows, threads, pitch>(part, results, place.head * call.y_batch_stride, first_row, rows,
                                                 first_output);
}

}  // namespace
