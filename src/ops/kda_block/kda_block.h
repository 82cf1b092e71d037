// The KDA recurrence in its only form (design.md 5): blocks of 16 tokens on the absolute grid, a state at the block's
// start and a log of the rows since. Prompt, decode and draft rows run the same arithmetic; rejecting rows costs
// nothing.
//
//   a_tj = Σ_d k_t[d]·k_j[d]·exp(G_t[d] − G_j[d]),  b_tj the same with q_t                (j < t in the block)
//   δ_t  = β_t (v_t − S₀ᵀ(exp(G_t) ∘ k_t) − Σ_{j<t} a_tj δ_j)
//   o_t  = S₀ᵀ(exp(G_t) ∘ q_t) + Σ_{j<t} b_tj δ_j + (q_t·k_t) δ_t
//   next S₀ = diag(exp(G_15)) S₀ + Σ_j (k_j ∘ exp(G_15 − G_j)) δ_jᵀ
#pragma once

#include <cstdint>

#include "device/threads.h"

namespace tandem::ops {

constexpr int64_t kda_block_rows = 16;
constexpr int64_t max_kda_dim = 256;

// State of one layer of one stream. Log rows lie at position mod log_rows.
struct KdaState {
  float* s0 = nullptr;         // [heads, dim (key), dim (value)] at the start of block `block`
  float* log_k = nullptr;      // [log_rows, heads·dim]
  float* log_g = nullptr;      // [log_rows, heads·dim] G, the sum of g from the block's start
  float* log_delta = nullptr;  // [log_rows, heads·dim]
  int64_t log_rows = 32;       // multiple of 16, ≥ 16 + the rows that a roll-back may drop
  int64_t block = 0;           // s0 holds everything before position 16·block
};

struct KdaBlock {
  int64_t heads = 0, dim = 0;
  int64_t position = 0, rows = 0;
  int64_t certain_rows = 0;  // rows that will be kept: S₀ may be advanced over them
  const float *q = nullptr, *k = nullptr, *v = nullptr, *g = nullptr;  // [rows, heads·dim]
  const float* beta = nullptr;                                         // [rows, heads]
  KdaState state;
  float* working = nullptr;  // scratch [heads, dim, dim]: S₀ of blocks that uncertain rows cross
  float* o = nullptr;        // out [rows, heads·dim]
};

// The block at which the state stands after the step: that of the first row that may still be dropped, and never past
// the last row's.
int64_t kda_block_after(int64_t block, int64_t position, int64_t rows, int64_t certain_rows);

// Writes o and the log rows and advances s0 over full blocks of certain rows. The caller then sets state.block to
// kda_block_after().
void kda_block(device::Threads& threads, const KdaBlock& args);

// The recurrent state after `length` rows, [heads, dim, dim], from S₀ and the log.
void kda_materialise(const KdaState& state, int64_t heads, int64_t dim, int64_t length, float* out);

}  // namespace tandem::ops
