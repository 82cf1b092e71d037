// The DFlash2 drafter's candidates and the edges between them (spec/speculation.md 1.6).
#pragma once

#include <cstdint>

#include "device/threads.h"
#include "ops/linear/matrix.h"

namespace tandem::ops {

// For each row of logits [rows, vocab_size] its `count` ≤ vocab_size largest: ids and values [rows, count], value
// descending, ties by smaller id. A NaN counts as −infinity.
void top_candidates(device::Threads& threads, const float* logits, int64_t rows, int64_t vocab_size, int64_t count,
                    int32_t* ids, float* values);

// edges[s][r][p][c] = Σ_j A[prev][j]·g[s][r][j]·B[ids[s][r][c]][j] with prev = ids[s][r − 1][p]; in row 0 prev is the
// stream's pending token for every p.
struct SelectorEdges {
  const Matrix* predecessor = nullptr;  // A, B [vocab, rank], BF16 or F32
  const Matrix* successor = nullptr;
  int64_t streams = 0, rows = 0, top_k = 0;
  const int32_t* pending = nullptr;  // [streams]
  const int32_t* ids = nullptr;      // [streams, rows, top_k]
  const float* g = nullptr;          // [streams, rows, rank]
  float* scratch = nullptr;          // [threads, selector_scratch()]
  float* edges = nullptr;            // [streams, rows, top_k, top_k]
};
constexpr int64_t most_candidates = 16;  // top_k at most
constexpr int64_t selector_scratch(int64_t top_k, int64_t rank) { return 2 * top_k * rank; }
void selector_edges(device::Threads& threads, const SelectorEdges& args);

}  // namespace tandem::ops
