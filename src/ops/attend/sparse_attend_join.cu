// What splits of a row came to becomes the row: splits of a leaf ascending, then leaf 0 and leaf 1 (sparse_attend.h),
// in the arithmetic of the kernels by rows. A block a head and row. The chain that a thread walks is one multiply-add a
// split: what splits are multiplied by depends on nothing but their largest scores, so all of that is known first, a
// lane a split. Floor: the partial sums read once, 2 KiB a split and head at 4.4 TB/s, for 34 splits of 64 heads 1 µs.
#include "ops/attend/sparse_attend_tile.h"

namespace {

using namespace tandem;
using namespace tandem::ops::attend;

constexpr int32_t join_threads = 512;
constexpr int32_t columns = (rank + join_threads - 1) / join_threads;  // of a thread
constexpr int32_t at_once = 18;  // splits whose values are on their way together: half of 2,051 keys, and one more
constexpr int32_t most_splits = 32 * at_once;  // of a leaf

// A leaf's splits, in shared memory: what the sums so far and the split's are multiplied by when it joins.
struct Weights {
  float before[most_splits], own[most_splits];
  float largest, sum;  // of the leaf
};

// By a warp. `at`: of the leaf's first split in partial_sums.
TANDEM_DEVICE void find_weights(const ops::SparseAttendLaunch& args, int64_t at, int32_t count, Weights& weights) {
  const int32_t lane = thread() % 32, heads = args.attend.heads;
  float largest = bits_to_float(0xff800000u), sum = 0.0f;
  for (int32_t first = 0; first < count; first += 32) {
    const bool there = first + lane < count;
    const int64_t from = 2 * (at + static_cast<int64_t>(there ? first + lane : 0) * heads);
    const float mine = there ? args.partial_sums[from] : bits_to_float(0xff800000u);
    const float my_sum = there ? args.partial_sums[from + 1] : 0.0f;
    float most = mine > largest ? mine : largest;  // of the splits up to this one
#pragma unroll
    for (int32_t step = 1; step < 32; step *= 2) {
      const float lower = shuffle(most, static_cast<uint32_t>(lane >= step ? lane - step : lane));
      most = lower > most ? lower : most;
    }
    const float up_to_last = shuffle(most, static_cast<uint32_t>(lane > 0 ? lane - 1 : 0));
    const float so_far = lane > 0 ? up_to_last : largest;
    const float before = exp_(so_far - most), own = exp_(mine - most);
    if (there) {
      weights.before[first + lane] = before;
      weights.own[first + lane] = own;
    }
    for (int32_t i = 0; i < 32 && first + i < count; ++i) {
      const auto from_lane = static_cast<uint32_t>(i);
      sum = fma_(shuffle(my_sum, from_lane), shuffle(own, from_lane), sum * shuffle(before, from_lane));
    }
    largest = shuffle(most, 31);
  }
  if (lane == 0) {
    weights.largest = largest;
    weights.sum = sum;
  }
}

// Values of splits [first, first + at_once) of a leaf, zeros beyond `count`; `at`: of the leaf's first in `partial`.
TANDEM_DEVICE void load(const ops::SparseAttendLaunch& args, int64_t at, int32_t first, int32_t count,
                        float (&values)[at_once][columns]) {
#pragma unroll
  for (int32_t k = 0; k < at_once; ++k) {
#pragma unroll
    for (int32_t i = 0; i < columns; ++i) {
      const int32_t column = thread() + i * join_threads;
      values[k][i] = first + k < count && column < rank
                         ? args.partial[(at + static_cast<int64_t>(first + k) * args.attend.heads) * rank + column]
                         : 0.0f;
    }
  }
}
TANDEM_DEVICE void fold(const Weights& weights, int32_t first, int32_t count, const float (&values)[at_once][columns],
                        float (&acc)[columns]) {
#pragma unroll
  for (int32_t k = 0; k < at_once; ++k) {
    if (first + k >= count) break;
#pragma unroll
    for (int32_t i = 0; i < columns; ++i)
      acc[i] = joined(acc[i], weights.before[first + k], values[k][i], weights.own[first + k]);
  }
}

TANDEM_KERNEL(attend_join, ops::SparseAttendLaunch, 512) {
  __shared__ Weights weights[2];
  const auto head = static_cast<int32_t>(blockIdx.x), row = static_cast<int32_t>(blockIdx.y);
  if (row >= args.attend.step.counts[ops::step_rows]) return;
  const int32_t splits[2] = {args.splits[2 * row], args.splits[2 * row + 1]};
  const int64_t heads = args.attend.heads;
  const int64_t first = static_cast<int64_t>(row) * args.max_splits * heads + head;
  const int64_t at[2] = {first, first + splits[0] * heads};
  float values[2][at_once][columns];
  load(args, at[0], 0, splits[0], values[0]);
  load(args, at[1], 0, splits[1], values[1]);
  const int32_t warp = thread() / 32;
  if (warp == 0) find_weights(args, at[0], splits[0], weights[0]);
  if (warp == 1) find_weights(args, at[1], splits[1], weights[1]);
  __syncthreads();
  float acc[2][columns] = {};
#pragma unroll
  for (int32_t leaf = 0; leaf < 2; ++leaf) {
    fold(weights[leaf], 0, splits[leaf], values[leaf], acc[leaf]);
#pragma unroll 1
    for (int32_t next = at_once; next < splits[leaf]; next += at_once) {
      load(args, at[leaf], next, splits[leaf], values[leaf]);
      fold(weights[leaf], next, splits[leaf], values[leaf], acc[leaf]);
    }
  }
  bf16* out = args.attend.out + (static_cast<int64_t>(row) * heads + head) * rank;
  const bool both = splits[0] > 0 && splits[1] > 0;
  float weight = 0.0f, other_weight = 0.0f, only = 0.0f;
  if (both) {
    float largest = weights[0].largest, sum = weights[0].sum;
    join(largest, sum, weights[1].largest, weights[1].sum, weight, other_weight);
    weight /= sum;
    other_weight /= sum;
  } else {
    only = 1.0f / (splits[0] > 0 ? weights[0].sum : weights[1].sum);
  }
#pragma unroll
  for (int32_t i = 0; i < columns; ++i) {
    const int32_t column = thread() + i * join_threads;
    if (column >= rank) continue;
    const float value =
        both ? joined(acc[0][i], weight, acc[1][i], other_weight) : (splits[0] > 0 ? acc[0][i] : acc[1][i]) * only;
    out[column] = to_bf16(value);
  }
}

}  // namespace
