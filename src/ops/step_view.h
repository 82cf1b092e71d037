// A step as kernels see it: forward/step.h's arrays in device memory. What changes from step to step is here, never in
// a launch, so that a recorded graph serves every step of its size. Launches cover the most rows, segments or blocks
// that a step of their size can have; blocks beyond `counts` return at once.
#pragma once

#include "device/kernel_types.h"

namespace tandem::ops {

// A run of consecutive rows of one stream (forward::Segment).
struct SegmentView {
  int32_t slot;
  int32_t page_table;  // first entry of the stream's page table in StepView::page_tables
  int32_t first_row;   // in the step
  int32_t rows;
  int32_t certain_rows;  // rows that will be kept whatever the logits say
  int32_t position;      // absolute position of the first row
  int32_t kda_block;     // the slot's KDA states are those at the start of this block of 16 rows (kda_block.h)
  int32_t reserved;
};

struct StepView {
  const int32_t* counts;          // StepCount: how many there are in this step
  const int32_t* tokens;          // [rows]
  const int32_t* positions;       // [rows] absolute
  const int32_t* segment_of_row;  // [rows]
  const SegmentView* segments;
  const int32_t* page_tables;  // physical pages; 0 is the null page
  const int32_t* logit_rows;   // rows whose logits are wanted
};

enum StepCount { step_rows, step_segments, step_logit_rows, step_counts = 8 };

// A plane of the paged pool in device memory (ops/latent/pages.h): row `index` of a stream lies at
// data + (page_table[index / rows_of_page] · rows_of_page + index % rows_of_page) · row_bytes.
struct PlaneView {
  uint8_t* data;
  uint8_t* scales;       // index_fp8: the records' fp32 scales, one a row; else nullptr
  int32_t kind;          // quant::RecordKind
  int32_t width;         // values of a row
  int32_t row_bytes;     // in data
  int32_t rows_of_page;  // token rows, or pools, of a page
  float outer_scale;     // latent_nvfp4: the layer's calibrated scale; 0: each row's own
  int32_t rank, ranks;   // entry i of a page table is a page of this rank's pool if i mod ranks = rank
};

// One layer's part of the per-stream slots in device memory: what belongs to slot s begins at data + s · stride values.
template <typename T>
struct SlotView {
  T* data;
  int64_t stride;
};

}  // namespace tandem::ops
