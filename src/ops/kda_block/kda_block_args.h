// What host code tells kda_block.cu, and the layout of what its two kernels hand over.
#pragma once

#include "ops/kda_conv/kda_conv_args.h"
#include "ops/step_view.h"

namespace tandem::ops {

constexpr int32_t kda_rows_of_block = 16;  // kda_block_rows of kda_block.h, for kernels
constexpr int32_t kda_log_rows = 32;       // rows of a slot's logs, by position

// One layer's recurrence over every segment of the step (kda_block.h has the formulas). A segment at position 0 starts
// afresh: whatever its slot held is taken as zeros, and S₀ of block 0 is stored as zeros unless the step advances it.
struct KdaBlockArgs {
  StepView step;
  int32_t heads;
  const float *q, *k;     // [rows, heads·TANDEM_KDA_DIM] as kda_conv makes them
  float* g;               // [rows, heads·dim] in: log decay; out: anything (G, on its way to the log)
  const device::bf16* v;  // [rows, heads·dim]
  const float* beta;      // [rows, heads]
  SlotView<float> s0;     // [heads, dim (key), dim (value)] at the start of block SegmentView::kda_block
  SlotView<float> log_k, log_g, log_delta;  // [kda_log_rows, heads·dim]
  float* scratch;                           // CudaKdaBlock::scratch_bytes()
  device::bf16* o;                          // out [rows, heads·dim]
};

// The same with what stands before it: k, v and g of `block` are those of `conv` and hand rows over, q and beta of both
// are not used.
struct KdaConvBlockArgs {
  KdaConvArgs conv;
  KdaBlockArgs block;
};

// Blocks of 16 tokens that a segment touches, with those between its slot's S₀ and its first row, are tasks; segment s
// has those from number first_row / 16 + kda_tasks_of_segment · s on. Numbers of two segments never meet: n rows touch
// at most (n + 14) / 16 + 1 blocks, and the slot's state is at most one block behind them.
constexpr int32_t kda_tasks_of_segment = 3;

}  // namespace tandem::ops
