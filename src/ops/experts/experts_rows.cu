// gate, up and SwiGLU, and down, for few rows: the weights stream from memory straight into fragments, 16 bytes a lane
// and load, many loads in flight. A block has a tile's rows and some tiles of 16 outputs; its warps share the slices of
// K, whose sums meet in shared memory and are added in ascending order. Weights are read once for every 8 (32) rows of
// an expert; rows come through the caches. Floor: the weights of the experts that have rows, at 4.4 TB/s.
#include "device/kernel.h"
#include "ops/experts/experts_args.h"
#include "ops/experts/experts_device.h"

namespace {

// Sums of one slice, columns [begin, end), for 16 outputs of each matrix and 8·row_tiles rows. x: row lane / 4 of each
// row tile, nullptr where there is none.
template <int matrices, int row_tiles>
TANDEM_DEVICE void sum_slice(const Work& work, int32_t first_output, int32_t begin, int32_t end, int32_t tiles,
                             const bf16* const (&x)[row_tiles], float (&sums)[matrices][row_tiles][4]) {
  constexpr int chunks = row_tiles == 1 ? 4 : 2;  // in flight
  const int32_t own = static_cast<int32_t>(threadIdx.x % 4) * 8;
#pragma unroll
  for (int m = 0; m < matrices; ++m)
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) sums[m][t][0] = sums[m][t][1] = sums[m][t][2] = sums[m][t][3] = 0.0f;
  for (int32_t group = begin; group < end; group += chunks * chunk_columns) {
    Bf16Lane weights[chunks][matrices];
    uint4 values[chunks][row_tiles];
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const int32_t column = group + c * chunk_columns + own;
#pragma unroll
      for (int m = 0; m < matrices; ++m)
        weights[c][m] = load_weights(work.weights[m], first_output, work.outputs, column, column < end);
    }
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const int32_t column = group + c * chunk_columns + own;
#pragma unroll
      for (int t = 0; t < row_tiles; ++t) {
        values[c][t] = zeros();
        if (x[t] != nullptr && column < end) values[c][t] = *reinterpret_cast<const uint4*>(x[t] + column);
      }
    }
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      if (group + c * chunk_columns >= end) break;
#pragma unroll
      for (int m = 0; m < matrices; ++m) {
        uint32_t first[4], second[4];
        make_fragments(weights[c][m], first, second);
#pragma unroll
        for (int t = 0; t < row_tiles; ++t) {
          if (t >= tiles) break;
          mma_bf16(sums[m][t], first, {values[c][t].x, values[c][t].y});
          mma_bf16(sums[m][t], second, {values[c][t].z, values[c][t].w});
        }
      }
    }
  }
}

// All slices of the block's tiles of outputs for rows [row, row + 8·row_tiles), into shared memory: a lane's four sums
// at partials[((tile · slices + slice) · matrices + m) · row_tiles + t][lane].
template <int matrices, int row_tiles>
TANDEM_DEVICE void sum_slices(const Work& work, int32_t first_output, int32_t tiles_of_block, int32_t slices,
                              int32_t row, float4* partials) {
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
  const bf16* x[row_tiles];
#pragma unroll
  for (int t = 0; t < row_tiles; ++t) {
    const int32_t mine = row + t * 8 + lane / 4;
    x[t] = mine < work.rows ? row_pointer(work, mine) : nullptr;
  }
  const int32_t tiles = (work.rows - row + 7) / 8;
  for (int32_t item = warp; item < tiles_of_block * slices; item += static_cast<int32_t>(blockDim.x / 32)) {
    const int32_t output = first_output + item / slices * 16, begin = work.begin + item % slices * slice_columns;
    if (output >= work.outputs) continue;
    float sums[matrices][row_tiles][4];
    const int32_t end = begin + slice_columns < work.end ? begin + slice_columns : work.end;
    sum_slice<matrices, row_tiles>(work, output, begin, end, tiles, x, sums);
#pragma unroll
    for (int m = 0; m < matrices; ++m)
#pragma unroll
      for (int t = 0; t < row_tiles; ++t)
        partials[((item * matrices + m) * row_tiles + t) * 32 + lane] =
            make_float4(sums[m][t][0], sums[m][t][1], sums[m][t][2], sums[m][t][3]);
  }
}

// What a thread adds up: the slices of its lane's four sums of one tile of outputs, matrix and row tile.
TANDEM_DEVICE float4 total(const float4* partials, int32_t slices, int32_t step) {
  float4 sum = partials[0];
  for (int32_t slice = 1; slice < slices; ++slice) {
    const float4 next = partials[slice * step];
    sum = make_float4(sum.x + next.x, sum.y + next.y, sum.z + next.z, sum.w + next.w);
  }
  return sum;
}

template <int row_tiles>
TANDEM_DEVICE void gate_up(const ops::ExpertProductArgs& args) {
  TANDEM_SHARED(float4, partials);
  Work work;
  bf16* activation;
  if (!find_gate_up(args, static_cast<int32_t>(blockIdx.x), work, activation)) return;
  const int32_t first_output = static_cast<int32_t>(blockIdx.y) * args.tiles_of_block * 16;
  if (first_output >= work.outputs) return;
  const int32_t slices = (work.end - work.begin + slice_columns - 1) / slice_columns;
  for (int32_t row = 0; row < work.rows; row += 8 * row_tiles) {
    sum_slices<2, row_tiles>(work, first_output, args.tiles_of_block, slices, row, partials);
    __syncthreads();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.tiles_of_block * row_tiles * 32;
         i += static_cast<int32_t>(blockDim.x)) {
      const int32_t lane = i % 32, t = i / 32 % row_tiles, tile = i / 32 / row_tiles;
      const int32_t output = first_output + tile * 16 + lane / 4, first_row = row + t * 8 + lane % 4 * 2;
      if (output >= work.outputs || first_row >= work.rows) continue;
      const float4* mine = partials + ((tile * slices * 2) * row_tiles + t) * 32 + lane;
      const float4 gate = total(mine, slices, 2 * row_tiles * 32);
      const float4 up = total(mine + row_tiles * 32, slices, 2 * row_tiles * 32);
      bf16* at = activation + static_cast<int64_t>(first_row) * work.outputs + output;
      const bool both_rows = first_row + 1 < work.rows, both_outputs = output + 8 < work.outputs;
      at[0] = to_bf16(clamped_swiglu(gate.x, up.x, args.swiglu_limit));
      if (both_rows) at[work.outputs] = to_bf16(clamped_swiglu(gate.y, up.y, args.swiglu_limit));
      if (both_outputs) at[8] = to_bf16(clamped_swiglu(gate.z, up.z, args.swiglu_limit));
      if (both_rows && both_outputs) at[work.outputs + 8] = to_bf16(clamped_swiglu(gate.w, up.w, args.swiglu_limit));
    }
    __syncthreads();
  }
}

template <int row_tiles>
TANDEM_DEVICE void down(const ops::ExpertProductArgs& args) {
  TANDEM_SHARED(float4, partials);
  Work work;
  float* result;
  if (!find_down(args, static_cast<int32_t>(blockIdx.x), work, result)) return;
  const int32_t first_output = args.first_output + static_cast<int32_t>(blockIdx.y) * args.tiles_of_block * 16;
  if (first_output >= work.outputs) return;
  const int32_t slices = (work.end - work.begin + slice_columns - 1) / slice_columns;
  for (int32_t row = 0; row < work.rows; row += 8 * row_tiles) {
    sum_slices<1, row_tiles>(work, first_output, args.tiles_of_block, slices, row, partials);
    __syncthreads();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.tiles_of_block * row_tiles * 32;
         i += static_cast<int32_t>(blockDim.x)) {
      const int32_t lane = i % 32, t = i / 32 % row_tiles, tile = i / 32 / row_tiles;
      const int32_t output = first_output + tile * 16 + lane / 4, first_row = row + t * 8 + lane % 4 * 2;
      if (output >= work.outputs || first_row >= work.rows) continue;
      const float4 sum = total(partials + (tile * slices * row_tiles + t) * 32 + lane, slices, row_tiles * 32);
      float* at = result + static_cast<int64_t>(first_row) * args.outputs + output - args.first_output;
      const bool both_rows = first_row + 1 < work.rows, both_outputs = output + 8 < work.outputs;
      at[0] = sum.x;
      if (both_rows) at[args.outputs] = sum.y;
      if (both_outputs) at[8] = sum.z;
      if (both_rows && both_outputs) at[args.outputs + 8] = sum.w;
    }
    __syncthreads();
  }
}

TANDEM_KERNEL(gate_up_8_rows, ops::ExpertProductArgs, 256) { gate_up<1>(args); }
TANDEM_KERNEL(gate_up_32_rows, ops::ExpertProductArgs, 256) { gate_up<4>(args); }
TANDEM_KERNEL(down_8_rows, ops::ExpertProductArgs, 256) { down<1>(args); }
TANDEM_KERNEL(down_32_rows, ops::ExpertProductArgs, 256) { down<4>(args); }

}  // namespace
