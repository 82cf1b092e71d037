// What host code tells sparse_attend.cu.
#pragma once

#include "ops/step_view.h"

namespace tandem::ops {

constexpr int32_t attend_split = 64;  // keys of a leaf, by ordinal, that have a softmax of their own: a tile

// Attention of absorbed queries over the selected latent rows (sparse_attend.h).
struct SparseAttendArgs {
  StepView step;
  const device::bf16* q;    // [rows, heads, kv_lora_rank] absorbed queries
  device::bf16* out;        // [rows, heads, kv_lora_rank] attended latents
  const int32_t* selected;  // [rows, max_selected] token positions, ascending
  const int32_t* counts;    // [rows], ≥ 1
  PlaneView latent;         // row = token; not f32
  int32_t max_selected;
  int32_t heads;
  float scale;  // qk_nope_head_dim^-0.5
  int32_t reserved;
};

struct SparseAttendLaunch {
  SparseAttendArgs attend;
  int32_t max_splits;   // of a row
  int32_t head_blocks;  // of a row
  float* partial;       // by splits: acc [rows, max_splits, heads, kv_lora_rank]; by rows: leaf 0 of each block's row
  float* partial_sums;  // by splits: largest score and sum [rows, max_splits, heads, 2]
  int32_t* splits;      // by splits: of each leaf [rows, 2]
  int32_t* places;      // by rows: of each block's row [max_selected]
};

}  // namespace tandem::ops
