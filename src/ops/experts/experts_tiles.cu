// gate, up and SwiGLU, and down, for many rows: a block has up to 32 or 128 rows of an expert and 128 rows of weights
// (64 of gate and 64 of up, 16 by 16), and walks K in stages of 64 columns that copies bring to shared memory in the
// background. Accumulators are added to the totals every 512 columns. Floor: 2·rows·outputs·K at 800 TFLOP/s; mma.sync
// is expected to reach about two thirds of that on sm_90.
//
// A stage in shared memory: for each of its two chunks of 32 columns, 64 bytes of each row of weights, then of x. Eight
// lanes read two neighbouring rows, 128 bytes, so no two of them meet in a bank; chunks are 64 bytes further apart than
// their rows ask for, so that neither do eight lanes that write one row.
#include "device/kernel.h"
#include "ops/experts/experts_args.h"
#include "ops/experts/experts_device.h"

namespace {

using ops::ExpertTileMemory;
constexpr int32_t weight_rows = ExpertTileMemory<128>::weight_rows, stages = ExpertTileMemory<128>::stages,
                  stage_columns = ExpertTileMemory<128>::stage_columns, threads = 256;
constexpr int32_t chunks_of_slice = slice_columns / stage_columns;

// The rows that a thread copies: every 32nd from thread / 8 on, 8 columns from 8·(thread mod 8) on.
template <int count>
struct Sources {
  const bf16* rows[count];  // nullptr: zeros
};

template <int count>
TANDEM_DEVICE void copy_rows(const Sources<count>& from, unsigned char* to, int32_t chunk, int32_t column, int32_t end,
                             const bf16* anywhere) {
  const int32_t part = static_cast<int32_t>(threadIdx.x % 8), first = static_cast<int32_t>(threadIdx.x / 8);
  const int32_t own = column + part * 8;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const bool present = from.rows[i] != nullptr && own < end;
    copy_async_16(to + part / 4 * chunk + (first + i * (threads / 8)) * 64 + part % 4 * 16,
                  present ? from.rows[i] + own : anywhere, present);
  }
}

// 8 columns of a row of the stage: the fragments of two mma.
TANDEM_DEVICE uint4 read_row(const unsigned char* chunk, int32_t row) {
  return *reinterpret_cast<const uint4*>(chunk + row * 64 + threadIdx.x % 4 * 16);
}

// Warps: 2 by 4 of 64 × 32 where a block has 128 rows, 4 by 2 of 32 × 16 where it has 32.
template <int rows>
struct Layout {
  static constexpr int warps_across = rows == 128 ? 4 : 2;
  static constexpr int output_tiles = rows == 128 ? 4 : 2;  // of 16 rows of weights
  static constexpr int row_tiles = rows == 128 ? 4 : 2;     // of 8 rows of x
};

template <int rows>
TANDEM_DEVICE void multiply_chunk(const unsigned char* weights, const unsigned char* x,
                                  float (&sums)[Layout<rows>::output_tiles][Layout<rows>::row_tiles][4]) {
  using L = Layout<rows>;
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), line = static_cast<int32_t>(threadIdx.x % 32 / 4);
  const int32_t first_weight = warp / L::warps_across * L::output_tiles * 16 + line;
  const int32_t first_row = warp % L::warps_across * L::row_tiles * 8 + line;
  uint4 values[L::row_tiles];
#pragma unroll
  for (int t = 0; t < L::row_tiles; ++t) values[t] = read_row(x, first_row + t * 8);
#pragma unroll
  for (int o = 0; o < L::output_tiles; ++o) {
    const Bf16Lane lane = {read_row(weights, first_weight + o * 16), read_row(weights, first_weight + o * 16 + 8)};
    uint32_t first[4], second[4];
    make_fragments(lane, first, second);
#pragma unroll
    for (int t = 0; t < L::row_tiles; ++t) {
      mma_bf16(sums[o][t], first, {values[t].x, values[t].y});
      mma_bf16(sums[o][t], second, {values[t].z, values[t].w});
    }
  }
}

// The products of the block's rows of weights and rows of x.
template <int rows>
TANDEM_DEVICE void multiply(const Work& work, const Sources<weight_rows / (threads / 8)>& weights,
                            unsigned char* shared,
                            float (&totals)[Layout<rows>::output_tiles][Layout<rows>::row_tiles][4]) {
  using L = Layout<rows>;
  using Memory = ExpertTileMemory<rows>;
  constexpr int x_rows = rows / (threads / 8);
  Sources<x_rows> x;
#pragma unroll
  for (int i = 0; i < x_rows; ++i) {
    const int32_t row = static_cast<int32_t>(threadIdx.x / 8) + i * (threads / 8);
    x.rows[i] = row < work.rows ? row_pointer(work, row) : nullptr;
  }
  const int32_t steps = (work.end - work.begin + stage_columns - 1) / stage_columns;
  const auto* anywhere = work.x;
#pragma unroll
  for (int stage = 0; stage < stages - 1; ++stage) {
    if (stage < steps) {
      unsigned char* at = shared + stage * Memory::stage;
      copy_rows(weights, at, Memory::weight_chunk, work.begin + stage * stage_columns, work.end, anywhere);
      copy_rows(x, at + 2 * Memory::weight_chunk, Memory::x_chunk, work.begin + stage * stage_columns, work.end,
                anywhere);
    }
    commit_copies();
  }
  float sums[L::output_tiles][L::row_tiles][4];
  for (int32_t step = 0; step < steps; ++step) {
    wait_for_copies<stages - 2>();
    __syncthreads();
    const int32_t next = step + stages - 1;
    if (next < steps) {
      unsigned char* at = shared + next % stages * Memory::stage;
      copy_rows(weights, at, Memory::weight_chunk, work.begin + next * stage_columns, work.end, anywhere);
      copy_rows(x, at + 2 * Memory::weight_chunk, Memory::x_chunk, work.begin + next * stage_columns, work.end,
                anywhere);
    }
    commit_copies();
    if (step % chunks_of_slice == 0) {
#pragma unroll
      for (int o = 0; o < L::output_tiles; ++o)
#pragma unroll
        for (int t = 0; t < L::row_tiles; ++t) sums[o][t][0] = sums[o][t][1] = sums[o][t][2] = sums[o][t][3] = 0.0f;
    }
    const unsigned char* stage = shared + step % stages * Memory::stage;
    const unsigned char* stage_x = stage + 2 * Memory::weight_chunk;
    multiply_chunk<rows>(stage, stage_x, sums);
    if (work.begin + step * stage_columns + chunk_columns < work.end)
      multiply_chunk<rows>(stage + Memory::weight_chunk, stage_x + Memory::x_chunk, sums);
    if (step % chunks_of_slice == chunks_of_slice - 1 || step == steps - 1) {
      const bool first_slice = step < chunks_of_slice;
#pragma unroll
      for (int o = 0; o < L::output_tiles; ++o)
#pragma unroll
        for (int t = 0; t < L::row_tiles; ++t)
#pragma unroll
          for (int i = 0; i < 4; ++i) totals[o][t][i] = first_slice ? sums[o][t][i] : totals[o][t][i] + sums[o][t][i];
    }
  }
  wait_for_copies<0>();
  __syncthreads();
}

constexpr int32_t activation_stride = 64 + 8;  // of the 64 outputs of a block, on their way out

template <int rows>
TANDEM_DEVICE void gate_up(const ops::ExpertProductArgs& args) {
  using L = Layout<rows>;
  TANDEM_SHARED(unsigned char, shared);
  Work work;
  bf16* activation;
  if (!find_gate_up(args, static_cast<int32_t>(blockIdx.x), work, activation)) return;
  const int32_t first_output = static_cast<int32_t>(blockIdx.y) * (weight_rows / 2);
  if (first_output >= work.outputs) return;
  Sources<weight_rows / (threads / 8)> weights;
#pragma unroll
  for (int i = 0; i < weight_rows / (threads / 8); ++i) {
    const int32_t row = static_cast<int32_t>(threadIdx.x / 8) + i * (threads / 8);
    const int32_t output = first_output + row / 32 * 16 + row % 16;
    const bf16* data = row / 16 % 2 == 0 ? work.weights[0].data : work.weights[1].data;
    weights.rows[i] = output < work.outputs ? data + output * work.weights[0].columns : nullptr;
  }
  float totals[L::output_tiles][L::row_tiles][4] = {};
  multiply<rows>(work, weights, shared, totals);

  bf16* staged = reinterpret_cast<bf16*>(shared);
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
  for (int o = 0; o < L::output_tiles; o += 2) {
    const int32_t output = (warp / L::warps_across * L::output_tiles + o) * 8 + lane / 4;
#pragma unroll
    for (int t = 0; t < L::row_tiles; ++t) {
      const int32_t row = (warp % L::warps_across * L::row_tiles + t) * 8 + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        staged[(row + i % 2) * activation_stride + output + i / 2 * 8] =
            to_bf16(clamped_swiglu(totals[o][t][i], totals[o + 1][t][i], args.swiglu_limit));
    }
  }
  __syncthreads();
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < work.rows * 8; i += threads) {
    const int32_t row = i / 8, output = i % 8 * 8;
    if (first_output + output >= work.outputs) continue;
    *reinterpret_cast<uint4*>(activation + static_cast<int64_t>(row) * work.outputs + first_output + output) =
        *reinterpret_cast<const uint4*>(staged + row * activation_stride + output);
  }
}

template <int rows>
TANDEM_DEVICE void down(const ops::ExpertProductArgs& args) {
  using L = Layout<rows>;
  TANDEM_SHARED(unsigned char, shared);
  Work work;
  float* result;
  if (!find_down(args, static_cast<int32_t>(blockIdx.x), work, result)) return;
  const int32_t first_output = args.first_output + static_cast<int32_t>(blockIdx.y) * weight_rows;
  if (first_output >= work.outputs) return;
  Sources<weight_rows / (threads / 8)> weights;
#pragma unroll
  for (int i = 0; i < weight_rows / (threads / 8); ++i) {
    const int32_t output = first_output + static_cast<int32_t>(threadIdx.x / 8) + i * (threads / 8);
    weights.rows[i] = output < work.outputs ? work.weights[0].data + output * work.weights[0].columns : nullptr;
  }
  float totals[L::output_tiles][L::row_tiles][4] = {};
  multiply<rows>(work, weights, shared, totals);

  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
  for (int o = 0; o < L::output_tiles; ++o) {
    const int32_t output = first_output + (warp / L::warps_across * L::output_tiles + o) * 16 + lane / 4;
#pragma unroll
    for (int t = 0; t < L::row_tiles; ++t) {
      const int32_t row = (warp % L::warps_across * L::row_tiles + t) * 8 + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (row + i % 2 < work.rows && output + i / 2 * 8 < work.outputs)
          result[static_cast<int64_t>(row + i % 2) * args.outputs + output + i / 2 * 8 - args.first_output] =
              totals[o][t][i];
      }
    }
  }
}

TANDEM_KERNEL(gate_up_tiles_32, ops::ExpertProductArgs, 256) { gate_up<32>(args); }
TANDEM_KERNEL(gate_up_tiles_128, ops::ExpertProductArgs, 256) { gate_up<128>(args); }
TANDEM_KERNEL(down_tiles_32, ops::ExpertProductArgs, 256) { down<32>(args); }
TANDEM_KERNEL(down_tiles_128, ops::ExpertProductArgs, 256) { down<128>(args); }

}  // namespace
