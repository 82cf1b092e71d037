// How the kernels of linear.cu and linear_tiles.cu hold tiles in shared memory, and how stored weights become fragments
// of the M operand: the one place that knows the weights' format. Kernel code.
//
// A tile (device/warpgroup.h) has 64 columns of K; its rows are weight rows (outputs) or rows of x.
#pragma once

#include "device/warpgroup.h"
#include "ops/linear/linear_args.h"

namespace tandem::ops {

using device::bf16;

using device::tile_columns;
using device::tile_offset;
using device::tile_row_bytes;

// Copies columns [column, column + 64) of `Rows` bf16 rows; zeros for rows beyond row_end and columns beyond
// column_end. `Threads` threads share the work.
template <int Rows, int Threads>
TANDEM_DEVICE void copy_rows(unsigned char* tile, const bf16* data, int64_t stride, int32_t first_row, int32_t row_end,
                             int32_t column, int32_t column_end, uint32_t thread) {
  static_assert(Rows * 8 % Threads == 0 && Threads % 8 == 0, "every thread copies pieces of one column");
  const uint32_t piece = thread % 8;
  const int32_t at = column + static_cast<int32_t>(piece) * 8;
  const int32_t first = first_row + static_cast<int32_t>(thread / 8);
  const bf16* from = data + first * stride + at;
#pragma unroll
  for (int i = 0; i < Rows * 8 / Threads; ++i) {
    const int32_t row = i * (Threads / 8);
    device::copy_async_16(tile + tile_offset(thread / 8 + static_cast<uint32_t>(row), piece), from + row * stride,
                          first + row < row_end && at < column_end);
  }
}

// B fragments of one or two k16 steps: columns 16·step …, of x rows [row, row + 8) and …
TANDEM_DEVICE void x_fragments_two_steps(uint32_t (&b)[4], const unsigned char* tile, uint32_t row, uint32_t step,
                                         uint32_t lane) {
  device::load_matrices(b, tile + tile_offset(row + lane % 8, 2 * step + lane / 8));
}
// … of rows [row, row + 16), one step: b[0], b[1] of the first eight.
TANDEM_DEVICE void x_fragments_two_tiles(uint32_t (&b)[4], const unsigned char* tile, uint32_t row, uint32_t step,
                                         uint32_t lane) {
  device::load_matrices(b, tile + tile_offset(row + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
}

// BF16 weights: copied as they are. Another format is another type with its own two functions: what a stage of the
// pipeline holds for `Rows` outputs, and a lane's A fragment of outputs [row, row + 16), columns 16·step ….
struct Bf16Weights {
  static constexpr int32_t row_bytes = tile_row_bytes;  // of a stage
};
template <int Rows, int Threads>
TANDEM_DEVICE void copy_weights(Bf16Weights, unsigned char* stage, const CudaMatrix& w, const bf16* data,
                                int32_t first_output, int32_t column, int32_t column_end, uint32_t thread) {
  copy_rows<Rows, Threads>(stage, data, w.row_stride, first_output, w.out_features, column, column_end, thread);
}
TANDEM_DEVICE void weight_fragment(Bf16Weights, uint32_t (&a)[4], const unsigned char* stage, uint32_t row,
                                   uint32_t step, uint32_t lane) {
  device::load_matrices(a, stage + tile_offset(row + lane % 16, 2 * step + lane / 16));
}

// The part of a launch that a block belongs to.
TANDEM_DEVICE const LinearArgs::Part& part_of_block(const LinearArgs& args) {
  int32_t i = 0;
  while (i + 1 < args.parts_used && static_cast<int32_t>(blockIdx.x) >= args.parts[i + 1].first_block) ++i;
  return args.parts[i];
}

TANDEM_DEVICE void store_output(const CudaLinearCall& call, int64_t at, float value) {
  if (call.y_is_fp32) {
    static_cast<float*>(call.y)[at] = value;
  } else {
    static_cast<bf16*>(call.y)[at] = device::to_bf16(value);
  }
}

}  // namespace tandem::ops
