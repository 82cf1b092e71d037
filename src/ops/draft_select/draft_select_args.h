// What host code tells draft_select.cu.
#pragma once

#include "device/kernel_types.h"

namespace tandem::ops {

struct TopCandidatesArgs {
  static constexpr int32_t values_of_lane = 16;                  // a warp's piece of a row
  static constexpr int32_t piece_columns = 32 * values_of_lane;  // of a row
  static constexpr int32_t most_pieces = 32 * values_of_lane;    // that a warp merges
  const int32_t* rows;                                           // how many there are
  const float* logits;                                           // [rows, vocab_size] at logits_stride
  int64_t logits_stride;
  int32_t vocab_size;  // of these columns
  int32_t first_id;    // id of column 0: a rank may have a part of the head
  int32_t count;
  int32_t pieces;
  int32_t* piece_ids;    // scratch [rows, pieces, count]: columns, -1: none
  uint32_t* piece_keys;  // scratch
  int32_t* ids;          // out [rows, count]
  float* values;         // out [rows, count]
};

struct SelectorEdgesArgs {
  const int32_t* streams;  // how many there are
  int32_t rows, top_k;     // draft rows of a stream
  int32_t rank;
  const device::bf16* predecessor;  // [vocab, rank]
  const device::bf16* successor;    // [vocab, rank]
  const int32_t* pending;           // [streams]
  const int32_t* ids;               // [streams, rows, top_k]
  const device::bf16* g;            // [streams, rows, rank]
  float* edges;                     // out [streams, rows, top_k, top_k]
};

}  // namespace tandem::ops
