// gate, up and SwiGLU, and down, for very many rows: the tiles of experts_tiles.cu with 128 rows, but the tensor cores
// read weights and rows from shared memory themselves (device/warpgroup.h). Two warp groups have 64 rows of weights
// each: of gate and up 8 by 8, so that a thread ends with both of an activation. Floor: 2·rows·outputs·K at 800
// TFLOP/s.
//
// The sums are those of the other kernels: of each 32 columns the four neighbouring ones from 8·l on for l = 0 … 3 are
// the 16 of the first product, the next four those of the second (experts_device.h). So copies are of 8 bytes, to the
// places where a product's 16 columns stand side by side.
#include "device/warpgroup.h"
#include "ops/experts/experts_args.h"
#include "ops/experts/experts_device.h"

namespace {

using Memory = ops::ExpertWarpgroupMemory;
constexpr int32_t weight_rows = Memory::weight_rows, tile_rows = Memory::rows, stages = Memory::stages, threads = 256;
constexpr int32_t chunks_of_slice = slice_columns / tile_columns;
constexpr int32_t rows_of_thread = 128 / (threads / 8);  // that it copies: every 32nd from thread / 8 on

struct Sources {
  const bf16* rows[rows_of_thread];  // nullptr: zeros
};

TANDEM_DEVICE void copy_rows(const Sources& from, unsigned char* tile, int32_t column, int32_t end,
                             const bf16* anywhere) {
  const uint32_t piece = threadIdx.x % 8, first = threadIdx.x / 8;
  const int32_t own = column + static_cast<int32_t>(piece) * 8;
  const uint32_t to = piece / 4 * 4 + piece % 4 / 2, inside = piece % 2 * 8;
#pragma unroll
  for (uint32_t i = 0; i < rows_of_thread; ++i) {
    const bool present = from.rows[i] != nullptr && own < end;
    const bf16* at = present ? from.rows[i] + own : anywhere;
    const uint32_t row = first + i * (threads / 8);
    copy_async_8(tile + tile_offset(row, to) + inside, at, present);
    copy_async_8(tile + tile_offset(row, to + 2) + inside, at + 4, present);
  }
}

// The products of the block's rows of weights and rows of x; the stages are free afterwards.
TANDEM_DEVICE void multiply(const Work& work, const Sources& weights, unsigned char* shared, WarpgroupSums& totals) {
  Sources x;
#pragma unroll
  for (int32_t i = 0; i < rows_of_thread; ++i) {
    const int32_t row = static_cast<int32_t>(threadIdx.x / 8) + i * (threads / 8);
    x.rows[i] = row < work.rows ? row_pointer(work, row) : nullptr;
  }
  const int32_t steps = (work.end - work.begin + tile_columns - 1) / tile_columns;
  int32_t next = 0, next_stage = 0;
  const auto copy_next = [&] {
    if (next < steps) {
      unsigned char* stage = shared + next_stage * Memory::stage;
      const int32_t column = work.begin + next * tile_columns;
      copy_rows(weights, stage, column, work.end, work.x);
      copy_rows(x, stage + Memory::weight_bytes, column, work.end, work.x);
    }
    commit_copies();
    ++next;
    next_stage = next_stage + 1 == stages ? 0 : next_stage + 1;
  };
#pragma unroll
  for (int32_t i = 0; i < stages - 2; ++i) copy_next();

  WarpgroupSums slice;
#pragma unroll
  for (int32_t n = 0; n < 16; ++n)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) slice[n][i] = totals[n][i] = 0.0f;
  int32_t stage_number = 0;
  for (int32_t first = 0; first < steps; first += chunks_of_slice) {
    const int32_t end = first + chunks_of_slice < steps ? first + chunks_of_slice : steps;
#pragma unroll 1
    for (int32_t step = first; step < end; ++step) {
      wait_for_copies<stages - 3>();
      publish_tiles();
      finish_all_but_one();
      __syncthreads();  // everybody's copies have landed, and nobody reads the stage before the last one
      const unsigned char* stage = shared + stage_number * Memory::stage;
      stage_number = stage_number + 1 == stages ? 0 : stage_number + 1;
      start_products<ColumnOrder::four_side_by_side>(slice, stage + threadIdx.x / 128 * 64 * tile_row_bytes,
                                                     stage + Memory::weight_bytes, step == first);
      copy_next();
    }
    finish_products(slice);
#pragma unroll
    for (int32_t n = 0; n < 16; ++n)
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) totals[n][i] = first == 0 ? slice[n][i] : totals[n][i] + slice[n][i];
  }
  wait_for_copies<0>();
  __syncthreads();
}

constexpr int32_t activation_stride = 64 + 8;  // of the 64 outputs of a block, on their way out

TANDEM_KERNEL(gate_up_warpgroup, ops::ExpertProductArgs, 256) {
  TANDEM_SHARED_TILES(shared);
  Work work;
  bf16* activation;
  if (!find_gate_up(args, static_cast<int32_t>(blockIdx.x), work, activation)) return;
  const int32_t first_output = static_cast<int32_t>(blockIdx.y) * (weight_rows / 2);
  if (first_output >= work.outputs) return;
  Sources weights;
#pragma unroll
  for (int32_t i = 0; i < rows_of_thread; ++i) {
    const int32_t row = static_cast<int32_t>(threadIdx.x / 8) + i * (threads / 8);
    const int32_t output = first_output + row / 16 * 8 + row % 8;
    const bf16* data = row / 8 % 2 == 0 ? work.weights[0].data : work.weights[1].data;
    weights.rows[i] = output < work.outputs ? data + output * work.weights[0].columns : nullptr;
  }
  WarpgroupSums totals;
  multiply(work, weights, shared, totals);

  bf16* staged = reinterpret_cast<bf16*>(shared);
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
  for (int32_t n = 0; n < 16; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i)
      staged[(n * 8 + lane % 4 * 2 + i) * activation_stride + warp * 8 + lane / 4] =
          to_bf16(clamped_swiglu(totals[n][i], totals[n][i + 2], args.swiglu_limit));
  }
  __syncthreads();
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < work.rows * 8; i += threads) {
    const int32_t row = i / 8, output = i % 8 * 8;
    if (first_output + output >= work.outputs) continue;
    *reinterpret_cast<uint4*>(activation + static_cast<int64_t>(row) * work.outputs + first_output + output) =
        *reinterpret_cast<const uint4*>(staged + row * activation_stride + output);
  }
}

constexpr int32_t output_stride = weight_rows + 4;  // fp32, of the 128 outputs of a block: four banks from row to row
static_assert(tile_rows * output_stride * 4 <= Memory::bytes, "results take the place of the stages");

TANDEM_KERNEL(down_warpgroup, ops::ExpertProductArgs, 256) {
  TANDEM_SHARED_TILES(shared);
  Work work;
  float* result;
  if (!find_down(args, static_cast<int32_t>(blockIdx.x), work, result)) return;
  const int32_t first_output = args.first_output + static_cast<int32_t>(blockIdx.y) * weight_rows;
  if (first_output >= work.outputs) return;
  Sources weights;
#pragma unroll
  for (int32_t i = 0; i < rows_of_thread; ++i) {
    const int32_t output = first_output + static_cast<int32_t>(threadIdx.x / 8) + i * (threads / 8);
    weights.rows[i] = output < work.outputs ? work.weights[0].data + output * work.weights[0].columns : nullptr;
  }
  WarpgroupSums totals;
  multiply(work, weights, shared, totals);

  float* staged = reinterpret_cast<float*>(shared);
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
  for (int32_t n = 0; n < 16; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i)
      staged[(n * 8 + lane % 4 * 2 + i % 2) * output_stride + warp * 16 + lane / 4 + i / 2 * 8] = totals[n][i];
  }
  __syncthreads();
  const int32_t first = first_output - args.first_output;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < work.rows * weight_rows; i += threads) {
    const int32_t row = i / weight_rows, output = i % weight_rows;
    if (first_output + output < work.outputs)
      result[static_cast<int64_t>(row) * args.outputs + first + output] = staged[row * output_stride + output];
  }
}

}  // namespace
