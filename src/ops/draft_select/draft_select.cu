// Candidates and edges of the DFlash2 drafter (spec/speculation.md 1.6). Candidates in two steps: each warp finds the
// largest of a piece of a row's logits, then a warp merges a row's pieces. A logit and its id make one 64-bit key of
// integers, so ties have one answer. Floor: the logits read once, 7 rows of 154,880: 4.3 MB, 1 µs.
#include "device/kernel.h"
#include "ops/draft_select/draft_select_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;

constexpr uint32_t no_id = 0xffffffffu;
constexpr int32_t held = ops::TopCandidatesArgs::values_of_lane;

// Greater logits have greater keys, −0 equals +0, NaN equals −infinity; all are greater than 0, which is none.
TANDEM_DEVICE uint32_t key_of(float x) {
  if (x != x) x = bits_to_float(0xff800000u);
  const uint32_t bits = float_to_bits(x == 0.0f ? 0.0f : x);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// What the lanes of a warp hold: keys and ids; a lane's best is found again when it is taken.
struct Held {
  uint32_t keys[held], ids[held];
  uint32_t best, best_id;
};
TANDEM_DEVICE void find_best(Held& h) {
  h.best = 0;
  h.best_id = no_id;
#pragma unroll
  for (int i = 0; i < held; ++i) {
    if (h.keys[i] > h.best || (h.keys[i] == h.best && h.best != 0 && h.ids[i] < h.best_id)) {
      h.best = h.keys[i];
      h.best_id = h.ids[i];
    }
  }
}
// The warp's next: its largest key, of these the smallest id; no_id when there is none left.
TANDEM_DEVICE uint32_t take_best(Held& h, uint32_t& largest) {
  largest = largest_in_warp(h.best);
  const uint32_t id = smallest_in_warp(h.best == largest && largest != 0 ? h.best_id : no_id);
  if (id != no_id && h.best == largest && h.best_id == id) {
#pragma unroll
    for (int i = 0; i < held; ++i)
      if (h.ids[i] == id) h.keys[i] = 0;
    find_best(h);
  }
  return id;
}

// A warp a piece: ids are columns, −1 where a piece has fewer than `count`.
TANDEM_KERNEL(candidates_of_pieces, ops::TopCandidatesArgs, 128) {
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t piece = static_cast<int32_t>(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32);
  if (row >= *args.rows || piece >= args.pieces) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), first = piece * 32 * held;
  const float* logits = args.logits + row * args.logits_stride;
  Held h;
#pragma unroll
  for (int i = 0; i < held; ++i) {
    const int32_t column = first + 32 * i + lane;
    h.ids[i] = static_cast<uint32_t>(column);
    h.keys[i] = column < args.vocab_size ? key_of(logits[column]) : 0;
  }
  find_best(h);
  const int64_t list = (static_cast<int64_t>(row) * args.pieces + piece) * args.count;
  for (int32_t i = 0; i < args.count; ++i) {
    uint32_t key;
    const uint32_t id = take_best(h, key);
    if (lane == 0) {
      args.piece_ids[list + i] = static_cast<int32_t>(id);
      args.piece_keys[list + i] = key;
    }
  }
}

// A block a row: its lists come to shared memory, then a warp takes the largest of their heads again and again. A lane
// walks the lists of pieces lane, lane + 32, ….
TANDEM_KERNEL(merge_candidates, ops::TopCandidatesArgs, 256) {
  TANDEM_SHARED(uint32_t, keys);  // [pieces, count], then ids
  const int32_t row = static_cast<int32_t>(blockIdx.x), thread = static_cast<int32_t>(threadIdx.x);
  if (row >= *args.rows) return;
  const int32_t size = args.pieces * args.count;
  uint32_t* ids = keys + size;
  for (int32_t i = thread; i < size; i += static_cast<int32_t>(blockDim.x)) {
    keys[i] = args.piece_keys[static_cast<int64_t>(row) * size + i];
    ids[i] = static_cast<uint32_t>(args.piece_ids[static_cast<int64_t>(row) * size + i]);
  }
  __syncthreads();
  if (thread >= 32) return;
  const float* logits = args.logits + row * args.logits_stride;
  Held h;
  int32_t next[held];  // place of the piece's next candidate
#pragma unroll
  for (int i = 0; i < held; ++i) {
    const int32_t piece = 32 * i + thread;
    h.keys[i] = piece < args.pieces ? keys[piece * args.count] : 0;
    h.ids[i] = piece < args.pieces ? ids[piece * args.count] : no_id;
    next[i] = piece * args.count + 1;
  }
  find_best(h);
  for (int32_t taken = 0; taken < args.count; ++taken) {
    const uint32_t largest = largest_in_warp(h.best);
    const uint32_t id = smallest_in_warp(h.best == largest && largest != 0 ? h.best_id : no_id);
    if (thread == 0) {
      const float value = id == no_id ? bits_to_float(0xff800000u) : logits[id];
      args.ids[row * args.count + taken] = id == no_id ? -1 : args.first_id + static_cast<int32_t>(id);
      args.values[row * args.count + taken] = value == value ? value : bits_to_float(0xff800000u);
    }
    if (id == no_id || h.best != largest || h.best_id != id) continue;
#pragma unroll
    for (int i = 0; i < held; ++i) {
      if (h.ids[i] != id) continue;
      const bool more = next[i] < (32 * i + thread + 1) * args.count;
      h.keys[i] = more ? keys[next[i]] : 0;
      h.ids[i] = more ? ids[next[i]] : no_id;
      ++next[i];
    }
    find_best(h);
  }
}

// A block a draft row: the products of predecessors with g, and the successors, in shared memory; a thread an edge, in
// ascending order of the rank's values.
TANDEM_KERNEL(edges_of_rows, ops::SelectorEdgesArgs, 256) {
  TANDEM_SHARED(float, before);  // [top_k, rank + 1] products, then [top_k, rank + 1] successors
  const int32_t stream = static_cast<int32_t>(blockIdx.y), r = static_cast<int32_t>(blockIdx.x);
  if (stream >= *args.streams) return;
  const int32_t k = args.top_k, stride = args.rank + 1, threads = static_cast<int32_t>(blockDim.x);
  float* after = before + k * stride;
  const int64_t row = static_cast<int64_t>(stream) * args.rows + r;
  const int32_t* ids = args.ids + row * k;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < k * args.rank; i += threads) {
    const int32_t candidate = i / args.rank, j = i % args.rank;
    const int64_t previous = r == 0 ? args.pending[stream] : ids[candidate - k];
    const float g = to_float(args.g[row * args.rank + j]);
    before[candidate * stride + j] = to_float(args.predecessor[previous * args.rank + j]) * g;
    after[candidate * stride + j] = to_float(args.successor[static_cast<int64_t>(ids[candidate]) * args.rank + j]);
  }
  __syncthreads();
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < k * k; i += threads) {
    const float *p = before + i / k * stride, *c = after + i % k * stride;
    float sum = 0.0f;
    for (int32_t j = 0; j < args.rank; ++j) sum = fma_(p[j], c[j], sum);
    args.edges[row * k * k + i] = sum;
  }
}

}  // namespace
