// What host code tells linear.cu and linear_tiles.cu.
#pragma once

#include "device/kernel_types.h"

namespace tandem::ops {

// A BF16 weight in device memory, row-major [out_features, in_features] with row_stride values from row to row (a
// multiple of 8, as in_features and leaf_columns are; data aligned to 16 bytes).
struct CudaMatrix {
  const device::bf16* data;
  int32_t out_features, in_features, row_stride;
  // Columns [0, leaf_columns) are leaf 0, the rest leaf 1 (ops::Matrix); in_features where there is one leaf.
  int32_t leaf_columns;
};

// y = W x for rows of x: y[r, o] = Σ_k W[o, k] x[r, k].
struct CudaLinearCall {
  CudaMatrix matrix;
  const device::bf16* x;  // row r at x + r · x_stride, aligned to 16 bytes; x_stride is a multiple of 8
  int64_t x_stride;
  void* y;  // bf16 or fp32; row r at value r · y_stride
  int64_t y_stride;
  bool y_is_fp32;
  // The same for several heads: head b adds b · the strides below (values; of w and x multiples of 8).
  int32_t batch = 1;
  int64_t w_batch_stride = 0, x_batch_stride = 0, y_batch_stride = 0;
};

// A sum over K is cut into slices at absolute positions: this many columns, counted from the leaf's first one.
constexpr int32_t linear_slice = 512;

struct LinearArgs {
  static constexpr int32_t max_calls = 8;
  struct Part {
    CudaLinearCall call;
    int32_t first_block;  // of the launch: this call's blocks begin here
    int32_t tiles;        // blocks along the outputs of one head
    int32_t split;        // linear.cu: warps that share an output tile's slices
    bool wide_stores;     // rows of y may be written 8 (bf16) or 16 (fp32) bytes at a time
  };
  const int32_t* rows;  // how many there are
  int32_t row_tiles;    // linear_tiles.cu: blocks along the rows
  int32_t parts_used;
  Part parts[max_calls];
};

}  // namespace tandem::ops
