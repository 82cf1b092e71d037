// What the kernels of kda_block.cu do with one block of 16 tokens and a head: kda_block_prepare's rows, and the
// products with S₀, the solution of δ and the advance of kda_block_walk, where a warp owns 8 value columns and its
// lanes share out the keys. For kernels.
#pragma once

#include "device/kernel.h"
#include "ops/kda_block/kda_block_args.h"
#include "ops/kda_conv/lane_values.h"

namespace tandem::ops {

// What the first launch leaves of a task and head, in floats.
struct Handover {
  static constexpr int32_t rows = kda_rows_of_block;
  static constexpr int32_t keys = 0;                          // [rows, dim] k ∘ exp(G)
  static constexpr int32_t queries = keys + rows * kda_dim;   // [rows, dim] q ∘ exp(G)
  static constexpr int32_t faded = queries + rows * kda_dim;  // [rows, dim] k ∘ exp(G_15 − G)
  static constexpr int32_t decay = faded + rows * kda_dim;    // [dim] exp(G_15)
  static constexpr int32_t a = decay + kda_dim;               // [rows j, rows t] a_tj, t > j
  static constexpr int32_t b = a + rows * rows;               // [rows t, rows j] b_tj, j < t, and b_tt = q·k
  static constexpr int32_t beta = b + rows * rows;            // [rows]
  static constexpr int32_t size = beta + rows;
};

constexpr int32_t warp_columns = 8, walk_warps = 4, walk_columns = warp_columns * walk_warps;

// Shared memory that a warp has for itself, in floats.
struct WarpPart {
  static constexpr int32_t from_state = 0;                                // [2 (k, q), rows, warp_columns]
  static constexpr int32_t delta = 2 * kda_rows_of_block * warp_columns;  // [rows, warp_columns]
  static constexpr int32_t size = delta + kda_rows_of_block * warp_columns;
};

// A block of a segment: rows [first, end) of its 16 are the segment's, those before are in the log.
struct BlockTask {
  int32_t block, last_block, first, end;
  int32_t start;  // position of the block's row 0
  int32_t row;    // in the step, of the block's row 0 (negative where the step begins later)
};

TANDEM_DEVICE BlockTask task_of(const SegmentView& segment, int32_t block) {
  const int32_t start = block * kda_rows_of_block;
  int32_t first = segment.position - start, end = first + segment.rows;
  const int32_t row = segment.first_row - first;
  first = first < 0 ? 0 : first > kda_rows_of_block ? kda_rows_of_block : first;
  end = end < kda_rows_of_block ? end : kda_rows_of_block;
  return {block, (segment.position + segment.rows - 1) / kda_rows_of_block, first, end, start, row};
}
TANDEM_DEVICE int32_t first_task(const SegmentView& segment, int32_t number) {
  return segment.first_row / kda_rows_of_block + kda_tasks_of_segment * number;
}
// The last segment whose tasks begin at or before this number; −1 without segments. By a whole warp.
TANDEM_DEVICE int32_t segment_of_task(const StepView& step, int32_t task) {
  const int32_t segments = step.counts[step_segments], lane = static_cast<int32_t>(threadIdx.x % 32);
  int32_t found = -1;
  for (int32_t i = lane; i < segments; i += 32)
    if (first_task(step.segments[i], i) <= task) found = i;
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    const int32_t other = device::shuffle_xor(found, mask);
    found = other > found ? other : found;
  }
  return found;
}
// kda_block_after() of kda_block.h.
TANDEM_DEVICE int32_t block_after(const SegmentView& segment) {
  const int32_t last = (segment.position + segment.rows - 1) / kda_rows_of_block;
  const int32_t certain = (segment.position + segment.certain_rows) / kda_rows_of_block;
  const int32_t reached = certain < last ? certain : last;
  return reached > segment.kda_block ? reached : segment.kda_block;
}
// Whether no later row of the segment takes the log row of this position.
TANDEM_DEVICE bool stays_in_log(const SegmentView& segment, int32_t position) {
  return position >= segment.position + segment.rows - kda_log_rows;
}

TANDEM_DEVICE float faded_key(float key, float last_sum, float sum) { return key * device::exp_(last_sum - sum); }

// Sums over Count lanes, that are neighbours, of Count values each: lane i gets the sum of value i. A tree: halves of
// the lanes exchange halves of the values. With Crossed > 1, lane i gives value v in x[v ^ (i / Crossed · Crossed)], so
// that what it keeps lies in front without a choice (Crossed divides Count).
template <int32_t Count, int32_t Crossed, int32_t Size>
TANDEM_DEVICE float sum_transposed(float (&x)[Size]) {
  if constexpr (Count == 1) {
    return x[0];
  } else {
    constexpr int32_t half = Count / 2;
    const bool upper = half < Crossed && (threadIdx.x & half) != 0;
#pragma unroll
    for (int32_t i = 0; i < half; ++i) {
      const float given = upper ? x[i] : x[i + half], kept = upper ? x[i + half] : x[i];
      x[i] = kept + device::shuffle_xor(given, static_cast<uint32_t>(half));
    }
    return sum_transposed<half, Crossed>(x);
  }
}

// Row t of a block, by a warp: a and b with the rows before it and the scaled key and query. keys, sums [rows, dim] in
// shared memory, q [dim].
TANDEM_DEVICE void prepare_row(const float* keys, const float* sums, const float* q, int32_t t, float* out) {
  constexpr int32_t n = kda_lane_values, rows = kda_rows_of_block;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), channel = lane * n;
  float query[n], key[n], sum[n];
  load_values(q + channel, query);
  load_values(keys + t * kda_dim + channel, key);
  load_values(sums + t * kda_dim + channel, sum);
  float pairs[2 * rows] = {};  // a, then b
#pragma unroll
  for (int32_t j = 0; j < rows; ++j) {
    if (j < t) {
      float other[n], other_sum[n];
      load_values(keys + j * kda_dim + channel, other);
      load_values(sums + j * kda_dim + channel, other_sum);
      for (int32_t i = 0; i < n; ++i) {
        const float faded = faded_key(other[i], sum[i], other_sum[i]);
        pairs[j] = device::fma_(key[i], faded, pairs[j]);
        pairs[rows + j] = device::fma_(query[i], faded, pairs[rows + j]);
      }
    } else if (j == t) {
      for (int32_t i = 0; i < n; ++i) pairs[rows + j] = device::fma_(query[i], key[i], pairs[rows + j]);
    }
  }
  const float pair = sum_transposed<2 * rows, 2 * rows>(pairs);
  if (lane < rows) {
    out[Handover::a + lane * rows + t] = pair;
  } else {
    out[Handover::b + t * rows + lane - rows] = pair;
  }
  for (int32_t i = 0; i < n; ++i) {
    const float decay = device::exp_(sum[i]);
    key[i] *= decay;
    query[i] *= decay;
  }
  store_values(out + Handover::keys + t * kda_dim + channel, key);
  store_values(out + Handover::queries + t * kda_dim + channel, query);
}

// A lane's part of S₀: keys of slice lane % 16, four columns from 4·(lane / 16) on of the warp's 8.
constexpr int32_t state_slices = 16, state_keys = kda_dim / state_slices, state_columns = 4;
constexpr int32_t state_piece = state_keys % 4 == 0 ? 4 : state_keys % 2 == 0 ? 2 : 1;  // keys side by side
struct State {
  float x[state_keys][state_columns];
};

TANDEM_DEVICE int32_t state_key(int32_t lane, int32_t i) {
  return (i / state_piece * state_slices + lane % state_slices) * state_piece + i % state_piece;
}
TANDEM_DEVICE void load_keys(const float* row, int32_t lane, float (&x)[state_keys]) {
#pragma unroll
  for (int32_t i = 0; i < state_keys; i += state_piece) {
    float piece[state_piece];
    load_values(row + state_key(lane, i), piece);
    for (int32_t j = 0; j < state_piece; ++j) x[i + j] = piece[j];
  }
}
TANDEM_DEVICE void clear(State& state) {
  for (int32_t i = 0; i < state_keys; ++i)
    for (int32_t c = 0; c < state_columns; ++c) state.x[i][c] = 0.0f;
}
// s0: the warp's first column of [dim, dim].
TANDEM_DEVICE void load_state(const float* s0, int32_t lane, State& state) {
#pragma unroll
  for (int32_t i = 0; i < state_keys; ++i)
    load_values(s0 + state_key(lane, i) * kda_dim + lane / state_slices * state_columns, state.x[i]);
}
TANDEM_DEVICE void store_state(const State& state, float* s0, int32_t lane) {
#pragma unroll
  for (int32_t i = 0; i < state_keys; ++i)
    store_values(s0 + state_key(lane, i) * kda_dim + lane / state_slices * state_columns, state.x[i]);
}

// S₀ᵀ(exp(G) ∘ k) and S₀ᵀ(exp(G) ∘ q) of the task's rows (and up to three more of their groups of four) to
// own[from_state]. Rows beyond the task hold anything.
TANDEM_DEVICE void apply_state(const State& state, const float* given, const BlockTask& task, int32_t lane,
                               float* own) {
  // A lane takes the rows of a group in an order of its own, for sum_transposed().
  const int32_t slice = lane % state_slices, mine = slice / state_columns;
  own += WarpPart::from_state + mine * warp_columns + lane / state_slices * state_columns + slice % state_columns;
  for (int32_t row = task.first / 4 * 4; row < task.end; row += 4) {
    float sums[2][4 * state_columns] = {};
#pragma unroll
    for (int32_t which = 0; which < 2; ++which) {
      const float* scaled = given + (which == 0 ? Handover::keys : Handover::queries) + row * kda_dim;
#pragma unroll
      for (int32_t r = 0; r < 4; ++r) {
        float x[state_keys];
        load_keys(scaled + (r ^ mine) * kda_dim, lane, x);
#pragma unroll
        for (int32_t i = 0; i < state_keys; ++i)
          for (int32_t c = 0; c < state_columns; ++c)
            sums[which][r * state_columns + c] = device::fma_(x[i], state.x[i][c], sums[which][r * state_columns + c]);
      }
    }
    for (int32_t which = 0; which < 2; ++which)
      own[(which * kda_rows_of_block + row) * warp_columns] =
          sum_transposed<4 * state_columns, state_columns>(sums[which]);
  }
}

// δ and o of the task's rows. Every lane solves column lane % 8 (four lanes the same one); o of rows lane / 8 + 4 i to
// outputs[i]. own[delta] has the rows before the task and gets its rows.
TANDEM_DEVICE void solve_rows(const float* given, const device::bf16* values, const BlockTask& task, int32_t lane,
                              float* own, float (&outputs)[kda_rows_of_block / 4]) {
  constexpr int32_t rows = kda_rows_of_block;
  const int32_t column = lane % warp_columns, share = lane / warp_columns;
  float rest[rows], delta[rows];
#pragma unroll
  for (int32_t t = 0; t < rows; ++t) {
    rest[t] = 0.0f;
    if (t >= task.first && t < task.end)
      rest[t] =
          device::to_float(values[t * walk_columns + column]) - own[WarpPart::from_state + t * warp_columns + column];
  }
#pragma unroll
  for (int32_t j = 0; j < rows; ++j) {
    delta[j] = 0.0f;
    if (j < task.end) {
      delta[j] =
          j < task.first ? own[WarpPart::delta + j * warp_columns + column] : given[Handover::beta + j] * rest[j];
#pragma unroll
      for (int32_t t = (j + 1) / 4 * 4; t < rows; t += 4) {
        float a[4];
        load_values(given + Handover::a + j * rows + t, a);
        for (int32_t i = 0; i < 4; ++i)
          if (t + i > j) rest[t + i] = device::fma_(-a[i], delta[j], rest[t + i]);
      }
    }
  }
#pragma unroll
  for (int32_t i = 0; i < rows / 4; ++i) {
    const int32_t t = 4 * i + share;
    float sum = own[WarpPart::from_state + (rows + t) * warp_columns + column], mine = 0.0f;
#pragma unroll
    for (int32_t j = 0; j < 4 * i + 4; j += 4) {
      float b[4];
      load_values(given + Handover::b + t * rows + j, b);
      for (int32_t n = 0; n < 4; ++n) {
        if (j + n > t) continue;
        sum = device::fma_(b[n], delta[j + n], sum);
        mine = delta[j + n];  // in the end δ_t
      }
    }
    outputs[i] = sum;
    if (t >= task.first && t < task.end) own[WarpPart::delta + t * warp_columns + column] = mine;
  }
}

// diag(exp(G_15)) S₀ + Σ_j (k_j ∘ exp(G_15 − G_j)) δ_jᵀ over a full block.
TANDEM_DEVICE void advance_state(State& state, const float* given, const float* delta, int32_t lane) {
  float decay[state_keys];
  load_keys(given + Handover::decay, lane, decay);
  for (int32_t i = 0; i < state_keys; ++i)
    for (int32_t c = 0; c < state_columns; ++c) state.x[i][c] *= decay[i];
#pragma unroll 4
  for (int32_t j = 0; j < kda_rows_of_block; ++j) {
    float faded[state_keys], d[state_columns];
    load_keys(given + Handover::faded + j * kda_dim, lane, faded);
    load_values(delta + j * warp_columns + lane / state_slices * state_columns, d);
#pragma unroll
    for (int32_t i = 0; i < state_keys; ++i)
      for (int32_t c = 0; c < state_columns; ++c) state.x[i][c] = device::fma_(faded[i], d[c], state.x[i][c]);
  }
}

}  // namespace tandem::ops
