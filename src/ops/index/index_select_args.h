// What host code tells index_score.cu, index_choose.cu and selection_share.cu.
#pragma once

#include "ops/step_view.h"

namespace tandem::ops {

// One layer's selection for the rows of a step (index_select.h).
struct IndexSelectArgs {
  StepView step;
  device::bf16* q;  // [rows, heads·dim]; against FP8 keys rotated and coded in place, each scale in the head's weight
  float* head_weights;  // [rows, heads] weights_proj x; heads^-0.5 is applied here
  int64_t q_stride, weights_stride;
  PlaneView pooled;      // bf16 or index_fp8; row p = key of pool p
  int32_t heads;         // 1 … index_max_heads
  int32_t budget;        // pools: index_topk / index_kpool
  int32_t* selected;     // out [rows, max_selected] token positions, ascending
  int32_t* counts;       // out [rows]
  float* gaps;           // optional out [rows]: score distance at the cut, +inf where nothing was cut
  int32_t max_selected;  // (budget + 1)·kpool − 1, or more
  int32_t max_pools;     // the most that a row of this launch sees: max_model_len / kpool
};
constexpr int32_t index_max_heads = 64;
constexpr int32_t index_chunk = 16384;  // scores, or candidates, that a block chooses from

// A batch of the step's rows, whose scores fit the scratch.
struct IndexBatch {
  IndexSelectArgs select;
  int32_t first_row, rows;  // of the step, at most
  int32_t rows_of_unit;     // rows of a stream that share keys
  int32_t max_chunks;
  float* scores;             // [rows, max_pools]
  uint32_t* candidate_keys;  // [rows, max_chunks, budget + 1] ordered scores of each chunk's best pools
  int32_t* candidate_pools;  // likewise
  float weight_factor;       // heads^-0.5 · dim^-0.5
};

// MTP's shared selection: what the last row of a slot's MTP segment attends to is kept for the rows of its chain.
struct SelectionShareArgs {
  StepView step;
  int32_t* selected;         // [rows, max_selected]
  int32_t* counts;           // [rows]
  float* gaps;               // optional [rows]
  int32_t* shared_selected;  // [slots, max_selected]
  int32_t* shared_counts;    // [slots]
  int32_t max_selected;      // room for the selection and every row of a chain
  int32_t reserved;
};

}  // namespace tandem::ops
