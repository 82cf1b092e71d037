// y = W x for many rows: tiles of outputs and rows that a block's warps share. Floor: 2 · rows · out · in operations /
// 800 TFLOP/s, or reading W once (bytes / 4.4 TB/s) below some 180 rows; mma.sync ends near 60 % of the first.
//
// Tiles of 64 columns come through a ring of stages by cp.async; ldmatrix feeds mma.sync. Accumulators are added to the
// sums at every slice's end, and leaf 0's sums are put aside at the leaf's (the arithmetic is linear_cuda.h's). Blocks
// that run together share 16 row tiles of x and few tiles of W, so both come from the second cache.
#include "ops/linear/tiles.h"

namespace {

using namespace tandem;
using namespace tandem::device;
using namespace tandem::ops;

// AsideInShared: leaf 0's sums wait in shared memory, where a thread has no registers for them.
template <typename Weights, int Outputs, int Rows, int OutputWarps, int RowWarps, int Stages, bool AsideInShared>
TANDEM_DEVICE void multiply_tile(const LinearArgs& args, unsigned char* shared) {
  constexpr int32_t threads = 32 * OutputWarps * RowWarps, warp_outputs = Outputs / OutputWarps,
                    warp_rows = Rows / RowWarps;
  constexpr int32_t m_tiles = warp_outputs / 16, n_tiles = warp_rows / 8;
  static_assert(n_tiles % 2 == 0, "B fragments are loaded two tiles at a time");
  constexpr int32_t weight_bytes = Outputs * Weights::row_bytes, stage_bytes = weight_bytes + Rows * tile_row_bytes;
  constexpr int32_t pitch = Outputs + 4;  // fp32 results, transposed: four banks from row to row
  static_assert(Rows * pitch * 4 <= Stages * stage_bytes, "results take the place of the stages");

  const int32_t rows = *args.rows;
  const LinearArgs::Part& part = part_of_block(args);
  const CudaLinearCall& call = part.call;
  const TilePlace place =
      place_of_block(static_cast<int32_t>(blockIdx.x) - part.first_block, part.tiles, args.row_tiles);
  const int32_t first_row = place.row_tile * Rows, first_output = place.output_tile * Outputs;
  if (first_row >= rows) return;
  const bf16* weights = call.matrix.data + place.head * call.w_batch_stride;
  const bf16* x = call.x + place.head * call.x_batch_stride;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t output_of_warp = warp % OutputWarps * warp_outputs, row_of_warp = warp / OutputWarps * warp_rows;

  Chunk next = first_chunk(call.matrix);
  uint32_t next_stage = 0;
  const auto copy_next = [&] {
    if (next.column < call.matrix.in_features) {
      unsigned char* stage = shared + next_stage * stage_bytes;
      copy_weights<Outputs, threads>(Weights{}, stage, call.matrix, weights, first_output, next.column, next.slice_end,
                                     threadIdx.x);
      copy_rows<Rows, threads>(stage + weight_bytes, x, call.x_stride, first_row, rows, next.column, next.slice_end,
                               threadIdx.x);
      advance(next, call.matrix);
    }
    commit_copies();
    next_stage = next_stage + 1 == Stages ? 0 : next_stage + 1;
  };
#pragma unroll
  for (int32_t i = 0; i < Stages - 1; ++i) copy_next();

  float acc[m_tiles][n_tiles][4], sums[m_tiles][n_tiles][4];
  float aside[AsideInShared ? 1 : m_tiles][AsideInShared ? 1 : n_tiles][4];
  float* aside_shared = reinterpret_cast<float*>(shared + Stages * stage_bytes) + threadIdx.x;
#pragma unroll
  for (int32_t m = 0; m < m_tiles; ++m)
#pragma unroll
    for (int32_t n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        acc[m][n][i] = sums[m][n][i] = 0.0f;
        if constexpr (!AsideInShared) aside[m][n][i] = 0.0f;
      }
  bool has_aside = false;

  uint32_t stage_number = 0;
  for (Chunk at = first_chunk(call.matrix); at.column < call.matrix.in_features; advance(at, call.matrix)) {
    wait_for_copies<Stages - 2>();
    __syncthreads();  // everybody's copies have landed, and the stage before is read
    copy_next();
    const unsigned char* stage = shared + stage_number * stage_bytes;
    stage_number = stage_number + 1 == Stages ? 0 : stage_number + 1;
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) {
      uint32_t b[n_tiles][2];
#pragma unroll
      for (int32_t n = 0; n < n_tiles; n += 2) {
        uint32_t pairs[4];
        x_fragments_two_tiles(pairs, stage + weight_bytes, row_of_warp + 8 * static_cast<uint32_t>(n), step, lane);
        b[n][0] = pairs[0];
        b[n][1] = pairs[1];
        b[n + 1][0] = pairs[2];
        b[n + 1][1] = pairs[3];
      }
#pragma unroll
      for (int32_t m = 0; m < m_tiles; ++m) {
        uint32_t a[4];
        weight_fragment(Weights{}, a, stage, output_of_warp + 16 * static_cast<uint32_t>(m), step, lane);
#pragma unroll
        for (int32_t n = 0; n < n_tiles; ++n) mma_bf16(acc[m][n], a, b[n]);
      }
    }
    if (!ends_slice(at)) continue;
    const bool leaf_ends = at.slice_end == at.leaf_end && at.leaf_end < call.matrix.in_features;
    has_aside = has_aside || leaf_ends;
#pragma unroll
    for (int32_t m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int32_t n = 0; n < n_tiles; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          sums[m][n][i] += acc[m][n][i];
          acc[m][n][i] = 0.0f;
          if (leaf_ends) {
            if constexpr (AsideInShared) {
              aside_shared[((m * n_tiles + n) * 4 + i) * threads] = sums[m][n][i];
            } else {
              aside[m][n][i] = sums[m][n][i];
            }
            sums[m][n][i] = 0.0f;
          }
        }
      }
    }
  }

  wait_for_copies<0>();
  __syncthreads();
  float* results = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int32_t m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int32_t n = 0; n < n_tiles; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        float value = sums[m][n][i];
        if constexpr (AsideInShared) {
          if (has_aside) value = aside_shared[((m * n_tiles + n) * 4 + i) * threads] + value;
        } else {
          value = aside[m][n][i] + value;
        }
        const uint32_t row = row_of_warp + 8 * static_cast<uint32_t>(n) + lane % 4 * 2 + static_cast<uint32_t>(i % 2);
        const uint32_t output =
            output_of_warp + 16 * static_cast<uint32_t>(m) + lane / 4 + static_cast<uint32_t>(i / 2 * 8);
        results[row * pitch + output] = value;
      }
    }
  }
  __syncthreads();
  store_tile<Outputs, Rows, threads, pitch>(part, results, place.head * call.y_batch_stride, first_row, rows,
                                            first_output);
}

TANDEM_KERNEL(linear_tile_32x64, LinearArgs, 128) {
  TANDEM_SHARED(unsigned char, shared);
  multiply_tile<Bf16Weights, 32, 64, 1, 4, 4, false>(args, shared);
}
TANDEM_KERNEL(linear_tile_64x64, LinearArgs, 256) {
  TANDEM_SHARED(unsigned char, shared);
  multiply_tile<Bf16Weights, 64, 64, 2, 4, 4, false>(args, shared);
}
TANDEM_KERNEL(linear_tile_128x64, LinearArgs, 256) {
  TANDEM_SHARED(unsigned char, shared);
  multiply_tile<Bf16Weights, 128, 64, 4, 2, 3, false>(args, shared);
}
TANDEM_KERNEL(linear_tile_128x128, LinearArgs, 256) {
  TANDEM_SHARED(unsigned char, shared);
  multiply_tile<Bf16Weights, 128, 128, 2, 4, 4, true>(args, shared);
}

}  // namespace
