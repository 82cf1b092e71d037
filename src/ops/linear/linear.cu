// y = W x for up to 16 rows, bound by reading W once: floor out · in · 2 bytes / 4.4 TB/s (rows cost a few percent).
//
// A block holds tiles of 16 or 32 outputs. The slices of a tile are shared by `split` warps: each streams its own
// slices through a ring of stages that nobody else touches, so there is no barrier inside a slice, and 4 warps × 3
// stages × 2 to 4 KiB a block are on their way. When every warp has one slice done (a round), the partial sums meet in
// shared memory and are added in ascending order; copies of the next round are already under way. The arithmetic is
// linear_cuda.h's.
#include "ops/linear/weights.h"

namespace {

using namespace tandem;
using namespace tandem::device;
using namespace tandem::ops;

struct Slice {
  int32_t first, end;
};
TANDEM_DEVICE int32_t slices_of(int32_t columns) { return (columns + linear_slice - 1) / linear_slice; }
TANDEM_DEVICE Slice slice(const CudaMatrix& w, int32_t index, int32_t of_leaf_0) {
  const bool second = index >= of_leaf_0;
  const int32_t first = second ? w.leaf_columns + (index - of_leaf_0) * linear_slice : index * linear_slice;
  const int32_t leaf_end = second ? w.in_features : w.leaf_columns;
  return {first, first + linear_slice < leaf_end ? first + linear_slice : leaf_end};
}

template <typename Weights, int MTiles, int NTiles, int warps_of_block, int stages>
TANDEM_DEVICE void multiply_by_slices(const LinearArgs& args, unsigned char* shared) {
  constexpr int32_t outputs = 16 * MTiles, tile_rows = 8 * NTiles, pitch = outputs + 4;
  constexpr int32_t weight_bytes = outputs * Weights::row_bytes,
                    stage_bytes = weight_bytes + tile_rows * tile_row_bytes;
  constexpr int32_t values = outputs * tile_rows;
  const int32_t rows = *args.rows;
  if (rows <= 0) return;
  const LinearArgs::Part& part = part_of_block(args);
  const CudaLinearCall& call = part.call;
  const int32_t block = static_cast<int32_t>(blockIdx.x) - part.first_block;
  const int32_t head = block / part.tiles, split = part.split;
  const uint32_t lane = threadIdx.x % 32;
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), member = warp % split;
  const int32_t first_output = (block % part.tiles * (warps_of_block / split) + warp / split) * outputs;
  const bf16* weights = call.matrix.data + head * call.w_batch_stride;
  const bf16* x = call.x + head * call.x_batch_stride;

  unsigned char* ring = shared + warp * stages * stage_bytes;
  // Partial sums of two rounds, [round][warp][row][output].
  float* partials = reinterpret_cast<float*>(shared + warps_of_block * stages * stage_bytes);

  const int32_t of_leaf_0 = slices_of(call.matrix.leaf_columns);
  const int32_t slices = of_leaf_0 + slices_of(call.matrix.in_features - call.matrix.leaf_columns);
  const int32_t rounds = (slices + split - 1) / split;

  // What is copied next: stage after stage of this warp's slices.
  int32_t next_slice = member;
  Slice next = slice(call.matrix, next_slice, of_leaf_0);
  uint32_t next_stage = 0;
  const auto copy_next = [&] {
    if (next_slice < slices) {
      unsigned char* stage = ring + next_stage * stage_bytes;
      copy_weights<outputs, 32>(Weights{}, stage, call.matrix, weights, first_output, next.first, next.end, lane);
      copy_rows<tile_rows, 32>(stage + weight_bytes, x, call.x_stride, 0, rows, next.first, next.end, lane);
      next.first += tile_columns;
      if (next.first >= next.end) {
        next_slice += split;
        next = slice(call.matrix, next_slice, of_leaf_0);
      }
    }
    commit_copies();
    next_stage = (next_stage + 1) % stages;
  };
  for (int32_t i = 0; i < stages - 1; ++i) copy_next();

  constexpr int32_t most_sums = values / 32;
  float sums[2][most_sums];
#pragma unroll
  for (int32_t i = 0; i < most_sums; ++i) sums[0][i] = sums[1][i] = 0.0f;
  const int32_t thread_of_tile = member * 32 + static_cast<int32_t>(lane), threads_of_tile = 32 * split;
  uint32_t stage_number = 0;
  for (int32_t round = 0; round < rounds; ++round) {
    float* of_round = partials + round % 2 * warps_of_block * tile_rows * pitch;
    const int32_t mine = round * split + member;
    if (mine < slices) {
      float acc[MTiles][NTiles][4];
#pragma unroll
      for (int32_t m = 0; m < MTiles; ++m)
#pragma unroll
        for (int32_t n = 0; n < NTiles; ++n)
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) acc[m][n][i] = 0.0f;
      const Slice columns = slice(call.matrix, mine, of_leaf_0);
      for (int32_t column = columns.first; column < columns.end; column += tile_columns) {
        wait_for_copies<stages - 2>();
        __syncwarp();  // every lane's copies have landed, and the stage before is read
        copy_next();
        const unsigned char* stage = ring + stage_number * stage_bytes;
        stage_number = (stage_number + 1) % stages;
        uint32_t b[4][NTiles][2];
#pragma unroll
        for (uint32_t load = 0; load < 2 * NTiles; ++load) {
          uint32_t pairs[4];
          if constexpr (NTiles == 1) {
            x_fragments_two_steps(pairs, stage + weight_bytes, 0, 2 * load, lane);
          } else {
            x_fragments_two_tiles(pairs, stage + weight_bytes, 0, load, lane);
          }
#pragma unroll
          for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t step = NTiles == 1 ? 2 * load + half : load, n = NTiles == 1 ? 0 : half;
            b[step][n][0] = pairs[2 * half];
            b[step][n][1] = pairs[2 * half + 1];
          }
        }
#pragma unroll
        for (uint32_t step = 0; step < 4; ++step) {
#pragma unroll
          for (int32_t m = 0; m < MTiles; ++m) {
            uint32_t a[4];
            weight_fragment(Weights{}, a, stage, 16 * static_cast<uint32_t>(m), step, lane);
#pragma unroll
            for (int32_t n = 0; n < NTiles; ++n) mma_bf16(acc[m][n], a, b[step][n]);
          }
        }
      }
      float* to = of_round + warp * tile_rows * pitch;
#pragma unroll
      for (int32_t m = 0; m < MTiles; ++m) {
#pragma unroll
        for (int32_t n = 0; n < NTiles; ++n) {
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            const int32_t row = 8 * n + static_cast<int32_t>(lane % 4) * 2 + i % 2;
            to[row * pitch + 16 * m + static_cast<int32_t>(lane / 4) + i / 2 * 8] = acc[m][n][i];
          }
        }
      }
    }
    __syncthreads();
    const float* of_tile = of_round + (warp - member) * tile_rows * pitch;
    for (int32_t other = 0; other < split && round * split + other < slices; ++other) {
      const bool second = round * split + other >= of_leaf_0;
      const float* from = of_tile + other * tile_rows * pitch;
#pragma unroll
      for (int32_t i = 0; i < most_sums; ++i) {
        const int32_t at = thread_of_tile + i * threads_of_tile;
        if (at < values) {
          const float value = from[at / outputs * pitch + at % outputs];
          if (second) {
            sums[1][i] += value;
          } else {
            sums[0][i] += value;
          }
        }
      }
    }
  }
#pragma unroll
  for (int32_t i = 0; i < most_sums; ++i) {
    const int32_t at = thread_of_tile + i * threads_of_tile;
    const int32_t row = at / outputs, output = first_output + at % outputs;
    if (at < values && row < rows && output < call.matrix.out_features)
      store_output(call, row * call.y_stride + head * call.y_batch_stride + output, sums[0][i] + sums[1][i]);
  }
}

TANDEM_KERNEL(linear_16x8, LinearArgs, 128) {
  TANDEM_SHARED(unsigned char, shared);
  multiply_by_slices<Bf16Weights, 1, 1, 4, 4>(args, shared);
}
TANDEM_KERNEL(linear_16x8_wide, LinearArgs, 256) {
  TANDEM_SHARED(unsigned char, shared);
  multiply_by_slices<Bf16Weights, 1, 1, 8, 4>(args, shared);
}
TANDEM_KERNEL(linear_32x8, LinearArgs, 128) {
  TANDEM_SHARED(unsigned char, shared);
  multiply_by_slices<Bf16Weights, 2, 1, 4, 4>(args, shared);
}
TANDEM_KERNEL(linear_16x16, LinearArgs, 128) {
  TANDEM_SHARED(unsigned char, shared);
  multiply_by_slices<Bf16Weights, 1, 2, 4, 4>(args, shared);
}
TANDEM_KERNEL(linear_32x16, LinearArgs, 128) {
  TANDEM_SHARED(unsigned char, shared);
  multiply_by_slices<Bf16Weights, 2, 2, 4, 3>(args, shared);
}

}  // namespace
