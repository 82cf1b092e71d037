// Attention of the drafter's blocks (spec/speculation.md 1.5). First a block of threads for each key head, 32 query
// rows (the heads of its group, row by row) and piece of 64 keys, cut at absolute positions: scores, probabilities
// against the piece's own largest score, and their sum over the values; then the pieces are merged in ascending order.
// fp32, but for the operands of the matrix instruction: q, k and v are bf16, a probability is the sum of two bf16
// values. Floor: keys and values in the window once, 2·(W − 1)·2·kv_heads·head_dim bytes a block: 8.4 MB, 1.9 µs at 4.4
// TB/s.
#include "device/kernel.h"
#include "ops/block_attend/block_attend_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;
using ops::BlockAttendArgs;

constexpr int32_t dim = TANDEM_DRAFTER_HEAD_DIM, keys = BlockAttendArgs::piece_keys,
                  queries = BlockAttendArgs::query_rows, threads = 128;
constexpr int32_t row_stride = dim + 8, score_stride = keys + 1, share_stride = keys + 8;
TANDEM_DEVICE float minus_infinity() { return bits_to_float(0xff800000u); }

// Shared memory.
struct Piece {
  bf16 k[keys][row_stride], v[keys][row_stride], q[queries][row_stride];
  float scores[queries][score_stride];
  bf16 high[queries][share_stride], low[queries][share_stride];  // probabilities
};
static_assert(sizeof(Piece) == BlockAttendArgs::row_bytes * row_stride + BlockAttendArgs::score_bytes);

// Keys of a piece: first, first + 1, … in absolute positions.
struct Range {
  int32_t position;  // of the block's row 0
  int32_t oldest;    // of the context that row 0 may see
  int32_t first, count;
};

// The oldest context position that row r sees, at most the block's position.
TANDEM_DEVICE int32_t oldest_of_row(const BlockAttendArgs& args, int32_t block, int32_t position, int32_t r) {
  int32_t oldest = position + r - (args.window - 1);
  if (oldest < args.context_first[block]) oldest = args.context_first[block];
  return oldest < position ? oldest : position;
}

// Piece `index` of the context, or the block itself, which is the last; false: no such piece.
TANDEM_DEVICE bool find_range(const BlockAttendArgs& args, int32_t block, int32_t index, Range& range) {
  range.position = args.segments[block].position;
  range.oldest = oldest_of_row(args, block, range.position, 0);
  if (index == args.pieces) {
    range.first = range.position;
    range.count = args.block_rows;
    return true;
  }
  const int32_t begin = (range.oldest / keys + index) * keys, end = begin + keys;
  range.first = begin < range.oldest ? range.oldest : begin;
  range.count = (end < range.position ? end : range.position) - range.first;
  return range.count > 0;
}

// Query row i of the tile: row r of the block, head g of the key head's group; false: there is none.
TANDEM_DEVICE bool find_query(const BlockAttendArgs& args, int32_t tile, int32_t i, int32_t& r, int32_t& g) {
  const int32_t group = args.heads / args.kv_heads, query = tile * queries + i;
  r = query / group;
  g = query % group;
  return r < args.block_rows;
}

TANDEM_DEVICE void load_piece(const BlockAttendArgs& args, const Range& range, int32_t block, int32_t kv_head,
                              int32_t tile, bool own, Piece& piece) {
  constexpr int32_t vectors = dim / 8;
  const int32_t width = args.kv_heads * dim;
  const bf16* ring = args.ring + args.segments[block].slot * args.slot_stride;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < keys * vectors; i += threads) {
    const int32_t row = i / vectors, column = i % vectors * 8;
    const bool present = row < range.count;
    const bf16 *k = args.k, *v = args.v;
    if (present && own) {
      const int64_t at =
          (static_cast<int64_t>(block) * args.block_rows + row) * args.kv_stride + kv_head * dim + column;
      k += at;
      v += at;
    } else if (present) {
      k = ring + static_cast<int64_t>((range.first + row) % args.ring_rows) * 2 * width + kv_head * dim + column;
      v = k + width;
    }
    copy_async_16(&piece.k[row][column], k, present);
    copy_async_16(&piece.v[row][column], v, present);
  }
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < queries * vectors; i += threads) {
    const int32_t row = i / vectors, column = i % vectors * 8, group = args.heads / args.kv_heads;
    int32_t r, g;
    const bool present = find_query(args, tile, row, r, g);
    const int64_t at =
        (static_cast<int64_t>(block) * args.block_rows + r) * args.q_stride + (kv_head * group + g) * dim + column;
    copy_async_16(&piece.q[row][column], present ? args.q + at : args.q, present);
  }
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
}

// Fragments of 16 rows by 16 columns of a row-major array: of its rows as M, or two tiles of N.
TANDEM_DEVICE void load_rows(uint32_t (&r)[4], const bf16* first, int32_t stride) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  load_matrices(r, first + (lane % 16) * stride + lane / 16 * 8);
}

// scores[query][key]: a warp has 16 keys.
TANDEM_DEVICE void score(const BlockAttendArgs& args, const Range& range, int32_t block, int32_t tile, bool own,
                         Piece& piece) {
  constexpr int32_t tiles = queries / 8;
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
  float sums[tiles][4] = {};
#pragma unroll
  for (int32_t column = 0; column < dim; column += 16) {
    uint32_t k[4];
    load_rows(k, &piece.k[warp * 16][column], row_stride);
#pragma unroll
    for (int32_t t = 0; t < tiles; t += 2) {
      uint32_t q[4];  // low columns of the two tiles of 8 queries, then high
      load_rows(q, &piece.q[t * 8][column], row_stride);
      mma_bf16(sums[t], k, {q[0], q[2]});
      mma_bf16(sums[t + 1], k, {q[1], q[3]});
    }
  }
#pragma unroll
  for (int32_t t = 0; t < tiles; ++t) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t key = warp * 16 + lane / 4 + i / 2 * 8, query = t * 8 + lane % 4 * 2 + i % 2;
      int32_t r, g;
      bool visible = find_query(args, tile, query, r, g) && key < range.count;
      if (visible && !own) visible = range.first + key >= oldest_of_row(args, block, range.position, r);
      piece.scores[query][key] = visible ? sums[t][i] * args.scale : minus_infinity();
    }
  }
  __syncthreads();
}

// Probabilities of the piece, and its largest scores and sums.
TANDEM_DEVICE void softmax(Piece& piece, float* piece_sums) {
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
  for (int32_t query = warp; query < queries; query += threads / 32) {
    const float* scores = piece.scores[query];
    const float largest = max_over_warp(scores[lane] < scores[lane + 32] ? scores[lane + 32] : scores[lane]);
    float sum = 0.0f;
#pragma unroll
    for (int32_t key = lane; key < keys; key += 32) {
      const float p = largest == minus_infinity() ? 0.0f : exp_(scores[key] - largest);
      sum += p;
      const bf16 high = to_bf16(p);
      piece.high[query][key] = high;
      piece.low[query][key] = to_bf16(p - to_float(high));
    }
    sum = sum_over_warp(sum);
    if (lane == 0) {
      piece_sums[query] = largest;
      piece_sums[queries + query] = sum;
    }
  }
  __syncthreads();
}

// outputs[query][d] = Σ over the piece's keys: a warp has every fourth 16 of the dimensions.
TANDEM_DEVICE void combine(const Piece& piece, float* outputs) {
  constexpr int32_t tiles = queries / 8;
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
  for (int32_t first = warp * 16; first < dim; first += threads / 2) {
    float sums[tiles][4] = {};
#pragma unroll
    for (int32_t key = 0; key < keys; key += 16) {
      uint32_t v[4];
      load_matrices_transposed(v, &piece.v[key + lane % 8 + lane / 16 * 8][first + lane / 8 % 2 * 8]);
#pragma unroll
      for (int32_t t = 0; t < tiles; t += 2) {
        uint32_t high[4], low[4];
        load_rows(high, &piece.high[t * 8][key], share_stride);
        load_rows(low, &piece.low[t * 8][key], share_stride);
        mma_bf16(sums[t], v, {high[0], high[2]});
        mma_bf16(sums[t], v, {low[0], low[2]});
        mma_bf16(sums[t + 1], v, {high[1], high[3]});
        mma_bf16(sums[t + 1], v, {low[1], low[3]});
      }
    }
#pragma unroll
    for (int32_t t = 0; t < tiles; ++t)
#pragma unroll
      for (int32_t i = 0; i < 4; ++i)
        outputs[(t * 8 + lane % 4 * 2 + i % 2) * dim + first + lane / 4 + i / 2 * 8] = sums[t][i];
  }
}

TANDEM_KERNEL(block_attend_pieces, BlockAttendArgs, 128) {
  TANDEM_SHARED(Piece, piece);
  const int32_t block = static_cast<int32_t>(blockIdx.z), index = static_cast<int32_t>(blockIdx.x);
  const int32_t tiles = static_cast<int32_t>(gridDim.y) / args.kv_heads;
  const int32_t kv_head = static_cast<int32_t>(blockIdx.y) / tiles, tile = static_cast<int32_t>(blockIdx.y) % tiles;
  Range range;
  if (block >= *args.blocks || !find_range(args, block, index, range)) return;
  const bool own = index == args.pieces;
  const int64_t at = (static_cast<int64_t>(block) * gridDim.y + blockIdx.y) * (args.pieces + 1) + index;
  load_piece(args, range, block, kv_head, tile, own, *piece);
  score(args, range, block, tile, own, *piece);
  softmax(*piece, args.piece_sums + at * 2 * queries);
  combine(*piece, args.piece_outputs + at * queries * dim);
}

// A block of threads a query row, a thread a dimension.
TANDEM_KERNEL(block_attend_merge, BlockAttendArgs, 256) {
  const int32_t block = static_cast<int32_t>(blockIdx.z), query = static_cast<int32_t>(blockIdx.x);
  if (block >= *args.blocks) return;
  const int32_t tiles = static_cast<int32_t>(gridDim.y) / args.kv_heads, group = args.heads / args.kv_heads;
  const int32_t kv_head = static_cast<int32_t>(blockIdx.y) / tiles, tile = static_cast<int32_t>(blockIdx.y) % tiles;
  int32_t r, g;
  if (!find_query(args, tile, query, r, g)) return;
  const int64_t first = (static_cast<int64_t>(block) * gridDim.y + blockIdx.y) * (args.pieces + 1);
  const float* sums = args.piece_sums + first * 2 * queries + query;
  const float* outputs = args.piece_outputs + (first * queries + query) * dim;
  const int32_t position = args.segments[block].position, oldest = oldest_of_row(args, block, position, 0);
  const int32_t context = oldest < position ? (position - 1) / keys - oldest / keys + 1 : 0;  // its pieces
  float largest = sums[args.pieces * 2 * queries];
  for (int32_t i = 0; i < context; ++i) {
    const float of_piece = sums[i * 2 * queries];
    if (of_piece > largest) largest = of_piece;
  }
  const int32_t d = static_cast<int32_t>(threadIdx.x);
  if (d >= dim) return;
  float total = 0.0f, out = 0.0f;
  for (int32_t i = 0; i <= context; ++i) {
    const int32_t at = i < context ? i : args.pieces;  // the block itself comes last
    const float share = exp_(sums[at * 2 * queries] - largest);
    total = fma_(share, sums[at * 2 * queries + queries], total);
    out = fma_(share, outputs[static_cast<int64_t>(at) * queries * dim + d], out);
  }
  bf16* to =
      args.out + (static_cast<int64_t>(block) * args.block_rows + r) * args.out_stride + (kv_head * group + g) * dim;
  to[d] = to_bf16(out / total);
}

}  // namespace
