// The block form of KDA (kda_block.h) in two launches.
//
// kda_block_prepare, a thread block for 16 tokens and a head: G, a, b, the keys and queries scaled by exp(G), and the
// keys faded to the block's end. kda_conv_prepare does the convolution before it too, so that q, k and g never leave
// the chip; the former is its reference in tests. Floor of a prompt's row and head of 128: 1.0 KB read, 1.9 KB written
// (0.67 ns at 4.4 TB/s: 0.7 µs a token for 32 heads and 34 layers), 1,300 exponentials.
// kda_block_walk, a thread block for 32 value columns of a head, which walks the segment's blocks: S₀ stays in
// registers, a warp owns 8 columns and waits for nobody but for its own copies. Floor of a prompt's row and head: 49k
// fp32 multiply-adds (1.7 ns on an H200: 1.8 µs a token). Decode: 64 KiB of S₀ and some 10 KiB of log a head (17 ns).
//
// Order of every sum, whoever runs beside the row: over keys 16 slices of a head's channels, ascending in a slice, then
// a tree; over the block's rows ascending.
#include "device/kernel.h"
#include "ops/kda_block/kda_block_args.h"
#include "ops/kda_block/kda_block_steps.h"
#include "ops/kda_conv/kda_conv_steps.h"

namespace {

using namespace tandem;
using namespace tandem::device;
using namespace tandem::ops;

constexpr int32_t dim = kda_dim, block_rows = kda_rows_of_block;

// a, b and the scaled rows of the task from keys, G and queries (row t of the block at t · query_stride), and what the
// block's advance needs. By all threads.
TANDEM_DEVICE void finish_block(const BlockTask& task, const float* keys, const float* sums, const float* queries,
                                int64_t query_stride, float* out) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  for (int32_t t = task.first + thread / 32; t < task.end; t += threads / 32)
    prepare_row(keys, sums, queries + t * query_stride, t, out);
  // Rows that are not the segment's: nobody uses what stands there, but it is copied with the others'.
  for (int32_t item = thread; item < block_rows * block_rows; item += threads) {
    const int32_t row = item / block_rows, column = item % block_rows;
    if (column < task.first || column >= task.end) out[Handover::a + item] = 0.0f;
    if (row < task.first || row >= task.end) out[Handover::b + item] = 0.0f;
  }
  if (thread < block_rows && (thread < task.first || thread >= task.end)) out[Handover::beta + thread] = 0.0f;
  if (task.block == task.last_block) return;
  const float* last = sums + (block_rows - 1) * dim;
  for (int32_t item = thread; item < block_rows * dim; item += threads)
    out[Handover::faded + item] = faded_key(keys[item], last[item % dim], sums[item]);
  for (int32_t d = thread; d < dim; d += threads) out[Handover::decay + d] = exp_(last[d]);
}

TANDEM_KERNEL(kda_block_prepare, KdaBlockArgs, 256) {
  __shared__ float keys[block_rows * dim];
  __shared__ float sums[block_rows * dim];  // G
  const int32_t head = static_cast<int32_t>(blockIdx.y), number = static_cast<int32_t>(blockIdx.x);
  const int32_t found = segment_of_task(args.step, number);
  if (found < 0) return;
  const SegmentView segment = args.step.segments[found];
  const BlockTask task = task_of(segment, segment.kda_block + number - first_task(segment, found));
  if (task.block > task.last_block) return;
  const int32_t width = args.heads * dim;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  float* out = args.scratch + (static_cast<int64_t>(number) * args.heads + head) * Handover::size;

  for (int32_t item = thread; item < 2 * dim; item += threads) {
    const bool is_key = item >= dim;
    const int32_t d = is_key ? item - dim : item, channel = head * dim + d;
    const SlotView<float>& ring = is_key ? args.log_k : args.log_g;
    const float* old = ring.data + segment.slot * ring.stride + channel;
    const float* fresh = (is_key ? args.k : args.g) + channel;
    float x[block_rows];
#pragma unroll
    for (int32_t t = 0; t < block_rows; ++t) {
      x[t] = 0.0f;
      if (t < task.first) {
        x[t] = old[static_cast<int64_t>((task.start + t) % kda_log_rows) * width];
      } else if (t < task.end) {
        x[t] = fresh[static_cast<int64_t>(task.row + t) * width];
      }
    }
#pragma unroll
    for (int32_t t = 0; t < block_rows; ++t) {
      if (!is_key && t >= task.first && t < task.end) {
        if (t > 0) x[t] += x[t - 1];
        args.g[static_cast<int64_t>(task.row + t) * width + channel] = x[t];
      }
      (is_key ? keys : sums)[t * dim + d] = x[t];
    }
  }
  if (thread < task.end - task.first)
    out[Handover::beta + task.first + thread] =
        args.beta[static_cast<int64_t>(task.row + task.first + thread) * args.heads + head];
  __syncthreads();
  finish_block(task, keys, sums, args.q + static_cast<int64_t>(task.row) * width + head * dim, width, out);
}

// kda_conv_rows and kda_block_prepare in one: q, k and g of a block stay in shared memory.
TANDEM_KERNEL(kda_conv_prepare, KdaConvBlockArgs, 256) {
  __shared__ float keys[block_rows * dim];
  __shared__ float queries[block_rows * dim];
  __shared__ float sums[block_rows * dim];  // g, then G
  const KdaConvArgs& conv = args.conv;
  const KdaBlockArgs& block = args.block;
  const int32_t number = static_cast<int32_t>(blockIdx.x), head_number = static_cast<int32_t>(blockIdx.y);
  const int32_t found = segment_of_task(block.step, number);
  if (found < 0) return;
  const SegmentView segment = block.step.segments[found];
  const BlockTask task = task_of(segment, segment.kda_block + number - first_task(segment, found));
  if (task.block > task.last_block) return;
  const int32_t width = block.heads * dim, thread = static_cast<int32_t>(threadIdx.x);
  const int32_t threads = static_cast<int32_t>(blockDim.x), lane = thread % 32;
  float* out = block.scratch + (static_cast<int64_t>(number) * block.heads + head_number) * Handover::size;

  const int64_t old_channel = head_number * dim;
  for (int32_t item = thread; item < task.first * dim; item += threads) {
    const int64_t at =
        static_cast<int64_t>((task.start + item / dim) % kda_log_rows) * width + old_channel + item % dim;
    keys[item] = block.log_k.data[segment.slot * block.log_k.stride + at];
    sums[item] = block.log_g.data[segment.slot * block.log_g.stride + at];
  }
  if (task.first + thread / 32 < task.end) {
    KdaHead head;
    load_head(conv, head_number, lane, head);
    for (int32_t t = task.first + thread / 32; t < task.end; t += threads / 32) {
      const int32_t row = task.row + t, at = t * dim + lane * kda_lane_values;
      KdaHeadRow made;
      kda_head_row(conv, segment, row, head_number, head, made);
      store_values(queries + at, made.q);
      store_values(keys + at, made.k);
      store_values(sums + at, made.g);
      const int64_t to = static_cast<int64_t>(row) * width + head.channel;
      store_values(conv.v + to, made.v);
      if (stays_in_log(segment, task.start + t)) store_values(conv.k + to, made.k);
      if (lane == 0) out[Handover::beta + t] = made.beta;
      if (kda_ring_at_once(segment)) kda_store_ring(conv, segment, row, head.channel);
    }
  }
  __syncthreads();
  for (int32_t d = thread; d < dim; d += threads) {
    for (int32_t t = task.first; t < task.end; ++t) {
      if (t > 0) sums[t * dim + d] += sums[(t - 1) * dim + d];
      if (stays_in_log(segment, task.start + t))
        conv.g[static_cast<int64_t>(task.row + t) * width + old_channel + d] = sums[t * dim + d];
    }
  }
  __syncthreads();
  finish_block(task, keys, sums, queries, dim, out);
}

// The part of a block's hand-over and values that its rows and its advance need, in the background.
TANDEM_DEVICE void stage(const KdaBlockArgs& args, const BlockTask& task, const float* from, const bf16* values,
                         float* to, bf16* to_values) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const auto copy = [&](int32_t first, int32_t count) {
    for (int32_t i = thread * 4; i < count; i += threads * 4) copy_async_16(to + first + i, from + first + i);
  };
  if (task.end > task.first) {
    const int32_t rows = task.end - task.first;
    copy(Handover::keys + task.first * dim, rows * dim);
    copy(Handover::queries + task.first * dim, rows * dim);
    copy(Handover::a, Handover::size - Handover::a);
    for (int32_t i = thread; i < rows * (walk_columns / 8); i += threads) {
      const int32_t t = task.first + i / (walk_columns / 8), column = i % (walk_columns / 8) * 8;
      copy_async_16(to_values + t * walk_columns + column,
                    values + static_cast<int64_t>(task.row + t) * args.heads * dim + column);
    }
  }
  if (task.block < task.last_block) copy(Handover::faded, Handover::a - Handover::faded);
  commit_copies();
}

// k and G of the segment's last rows into the slot's log, this thread block's 32 channels of them.
TANDEM_DEVICE void store_log_rows(const KdaBlockArgs& args, const SegmentView& segment, const BlockTask& task,
                                  int32_t channel) {
  const int32_t quads = walk_columns / 4, width = args.heads * dim;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < (task.end - task.first) * quads;
       i += static_cast<int32_t>(blockDim.x)) {
    const int32_t t = task.first + i / quads;
    if (!stays_in_log(segment, task.start + t)) continue;
    const int64_t from = static_cast<int64_t>(task.row + t) * width + channel + i % quads * 4;
    const int64_t to = static_cast<int64_t>((task.start + t) % kda_log_rows) * width + channel + i % quads * 4;
    float x[4];
    load_values(args.k + from, x);
    store_values(args.log_k.data + segment.slot * args.log_k.stride + to, x);
    load_values(args.g + from, x);
    store_values(args.log_g.data + segment.slot * args.log_g.stride + to, x);
  }
}

TANDEM_KERNEL(kda_block_walk, KdaBlockArgs, 128) {
  TANDEM_SHARED(float, shared);
  const int32_t number = static_cast<int32_t>(blockIdx.z), head = static_cast<int32_t>(blockIdx.y);
  if (number >= args.step.counts[step_segments]) return;
  const SegmentView segment = args.step.segments[number];
  const int32_t width = args.heads * dim, warp = static_cast<int32_t>(threadIdx.x / 32);
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t block_column = static_cast<int32_t>(blockIdx.x) * walk_columns;
  const int32_t column = block_column + warp * warp_columns;  // the warp's first value column
  const int32_t after = block_after(segment);

  float* const own = shared + 2 * Handover::size + warp * WarpPart::size;  // nobody else's
  bf16* const value_rows = reinterpret_cast<bf16*>(shared + 2 * Handover::size + walk_warps * WarpPart::size);
  const auto handover = [&](int32_t buffer) { return shared + buffer * Handover::size; };
  const auto values = [&](int32_t buffer) { return value_rows + buffer * block_rows * walk_columns; };

  const int32_t first_number = first_task(segment, number);
  const float* from = args.scratch + (static_cast<int64_t>(first_number) * args.heads + head) * Handover::size;
  const int64_t from_step = static_cast<int64_t>(args.heads) * Handover::size;
  const bf16* v = args.v + head * dim + block_column;
  stage(args, task_of(segment, segment.kda_block), from, v, handover(0), values(0));

  float* s0 = args.s0.data + segment.slot * args.s0.stride + static_cast<int64_t>(head) * dim * dim + column;
  float* log_delta = args.log_delta.data + segment.slot * args.log_delta.stride + head * dim + column;
  bf16* o = args.o + head * dim + column;
  State state;
  if (segment.position == 0) {
    clear(state);
    if (after == 0) store_state(state, s0, lane);
  } else {
    load_state(s0, lane, state);
  }

  int32_t buffer = 0;
  for (int32_t block = segment.kda_block;; ++block, buffer ^= 1) {
    const BlockTask task = task_of(segment, block);
    wait_for_copies<0>();
    __syncthreads();  // the block's data is here, and everyone is done with the other buffer
    if (block < task.last_block) {
      from += from_step;
      stage(args, task_of(segment, block + 1), from, v, handover(buffer ^ 1), values(buffer ^ 1));
    }
    const float* given = handover(buffer);
    for (int32_t i = lane; i < task.first * warp_columns; i += 32)
      own[WarpPart::delta + i] =
          log_delta[static_cast<int64_t>((task.start + i / warp_columns) % kda_log_rows) * width + i % warp_columns];
    if (task.end > task.first) {
      apply_state(state, given, task, lane, own);
      __syncwarp();
      float outputs[block_rows / 4];
      solve_rows(given, values(buffer) + warp * warp_columns, task, lane, own, outputs);
      for (int32_t i = 0; i < block_rows / 4; ++i) {  // lane l has column l % 8 of rows l / 8 + 4 i
        const int32_t t = 4 * i + lane / warp_columns, c = lane % warp_columns;
        if (t < task.first || t >= task.end) continue;
        o[static_cast<int64_t>(task.row + t) * width + c] = to_bf16(outputs[i]);
        if (stays_in_log(segment, task.start + t))
          log_delta[static_cast<int64_t>((task.start + t) % kda_log_rows) * width + c] =
              own[WarpPart::delta + t * warp_columns + c];
      }
      store_log_rows(args, segment, task, head * dim + block_column);
    }
    if (block == task.last_block) break;
    __syncwarp();
    advance_state(state, given, own + WarpPart::delta, lane);
    if (block + 1 == after) store_state(state, s0, lane);
  }
}

}  // namespace
