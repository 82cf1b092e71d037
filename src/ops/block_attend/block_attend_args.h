// What host code tells block_attend.cu.
#pragma once

#include "ops/step_view.h"

namespace tandem::ops {

// Row r of the block of segment b sees the block's rows and the context positions κ of its slot with
// max(context_first[b], position + r − (window − 1)) ≤ κ < position.
struct BlockAttendArgs {
  static constexpr int32_t piece_keys = 64;  // of the context, cut at absolute positions; the block is a piece, too
  static constexpr int32_t query_rows = 32;  // query heads of rows that share a key head, of a tile
  // Shared memory of a block of threads: row_bytes · (head_dim + 8) for keys, values and queries, and score_bytes for
  // scores and probabilities in two parts.
  static constexpr int32_t row_bytes = 2 * (2 * piece_keys + query_rows);
  static constexpr int32_t score_bytes = 4 * query_rows * (piece_keys + 1) + 2 * 2 * query_rows * (piece_keys + 8);
  const int32_t* blocks;         // how many there are
  const SegmentView* segments;   // [blocks]: slot and position of the first row
  const int32_t* context_first;  // [blocks]: no position below may be read
  int32_t block_rows, heads, kv_heads, window;
  float scale;
  const device::bf16* q;  // [blocks, block_rows, heads, head_dim] at q_stride a row, turned
  const device::bf16* k;  // [blocks, block_rows, kv_heads, head_dim] at kv_stride a row, turned
  const device::bf16* v;
  int64_t q_stride, kv_stride;
  // One layer's rings: row κ of slot s is ring + s·slot_stride + (κ mod ring_rows)·2·kv_heads·head_dim: keys, then
  // values.
  const device::bf16* ring;
  int64_t slot_stride;
  int32_t ring_rows;
  int32_t pieces;        // of the context, at most; one more is the block itself
  float* piece_sums;     // scratch [blocks, kv_heads, query tiles, pieces + 1, 2, 32]: largest score, sum
  float* piece_outputs;  // scratch [blocks, kv_heads, query tiles, pieces + 1, 32, head_dim]
  device::bf16* out;     // [blocks, block_rows, heads, head_dim] at out_stride a row
  int64_t out_stride;
};

}  // namespace tandem::ops
