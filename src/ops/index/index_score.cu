// Scores of pools (index_select.h; spec/model.md 4.5): Σ_h w_h · relu(q_h · K_p), with both square roots in the weight.
//
// Keys are the M operand and stay in registers, the heads of a row are N: a block holds 256 pools and runs over all
// rows of a unit (rows of one stream), whose queries pass through a ring in shared memory. A lane reads 16 bytes of a
// key at a time, so the columns of the dot product take part in the order 8·(q + 4j) + {0…3}, + {4…7} for lanes q =
// 0…3, the same for keys and queries. A lane adds its heads (2q, 2q + 1 of each eight, ascending), then the four lanes
// of a pool by a fixed tree. FP8 keys are e4m3 codes, which bf16 holds exactly; their scale, a power of two, multiplies
// the sum.
//
// Floor: 2·heads·dim operations a pool and row, 8,192 for the real model: 10.2 ps at 800 TFLOP/s. One row: the keys
// once from memory, 256 B (bf16) or 132 B (FP8) a pool: 58 or 30 ps at 4.4 TB/s.
#include "device/kernel.h"
#include "ops/index/index_select_args.h"
#include "quant/cache_records_device.h"

namespace {

using namespace tandem;
using namespace tandem::device;

constexpr int32_t dim = TANDEM_INDEX_HEAD_DIM;
constexpr int32_t kpool = TANDEM_INDEX_KPOOL;
constexpr int32_t threads = 256;
constexpr int32_t pools_of_warp = 32, pools_of_block = threads / 32 * pools_of_warp;
constexpr int32_t chunks = dim / 8;   // of 16 bytes in a bf16 key
constexpr int32_t groups = dim / 32;  // chunks of a lane
constexpr int32_t stages = 4;         // rows' queries in shared memory
static_assert(dim % 32 == 0, "four lanes read 16 bytes each");

TANDEM_DEVICE int32_t pools_seen(int32_t position) { return (position + 1) / kpool; }

// A warp's 32 keys as operands: [16 pools][two steps of k a chunk].
struct Keys {
  uint32_t a[2][2 * groups][4];
  float scale;  // of the pool that this lane writes
};

TANDEM_DEVICE int64_t place_of(const ops::PlaneView& plane, const int32_t* page_table, int32_t pool) {
  return static_cast<int64_t>(page_table[pool / plane.rows_of_page]) * plane.rows_of_page + pool % plane.rows_of_page;
}

// Pools from `first` on, those below `end`.
TANDEM_DEVICE void load_keys(const ops::PlaneView& plane, const int32_t* page_table, int32_t first, int32_t end,
                             Keys& keys) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), quad = lane % 4;
  const bool coded = plane.kind == quant::record_index_fp8;
#pragma unroll
  for (int32_t m = 0; m < 2; ++m) {
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t pool = first + m * 16 + half * 8 + lane / 4;
      const bool present = pool < end;
      const uint8_t* key = present ? plane.data + place_of(plane, page_table, pool) * plane.row_bytes : nullptr;
#pragma unroll
      for (int32_t j = 0; j < groups; ++j) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (present && coded) {
          const uint2 codes = reinterpret_cast<const uint2*>(key)[quad + 4 * j];
          v = quant::e4m3_eight(codes.x, codes.y);
        } else if (present) {
          v = reinterpret_cast<const uint4*>(key)[quad + 4 * j];
        }
        keys.a[m][2 * j][half] = v.x;
        keys.a[m][2 * j][2 + half] = v.y;
        keys.a[m][2 * j + 1][half] = v.z;
        keys.a[m][2 * j + 1][2 + half] = v.w;
      }
    }
  }
  const int32_t pool = first + quad * 8 + lane / 4;
  keys.scale = 1.0f;
  if (coded && pool < end) keys.scale = quant::load_float(plane.scales + place_of(plane, page_table, pool) * 4);
}

// A row's queries [padded heads, dim] bf16 with chunks of odd heads exchanged by halves (banks), then their weights.
TANDEM_DEVICE int32_t stage_bytes(int32_t padded_heads) { return padded_heads * (2 * dim + 4); }
TANDEM_DEVICE int32_t chunk_at(int32_t head, int32_t chunk) {
  return chunks >= 8 ? head * chunks + (chunk ^ ((head & 1) * 4)) : head * chunks + chunk;
}

TANDEM_DEVICE void start_row(const ops::IndexSelectArgs& args, int32_t row, int32_t padded_heads,
                             unsigned char* stage) {
  const bf16* q = args.q + row * args.q_stride;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < padded_heads * chunks; i += threads) {
    const int32_t head = i / chunks, chunk = i % chunks;
    const bool present = head < args.heads;
    copy_async_16(stage + chunk_at(head, chunk) * 16, q + (present ? i * 8 : 0), present);
  }
  const float* weights = args.head_weights + row * args.weights_stride;
  unsigned char* to = stage + padded_heads * 2 * dim;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < padded_heads; i += threads)
    copy_async_4(to + 4 * i, weights + (i < args.heads ? i : 0), i < args.heads);
}

// The score of the pool that this lane writes: first + 8·(lane % 4) + lane / 4 of the warp.
TANDEM_DEVICE float score_row(const Keys& keys, const unsigned char* stage, int32_t padded_heads, float factor) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), quad = lane % 4;
  const auto* queries = reinterpret_cast<const uint4*>(stage);
  const auto* weights = reinterpret_cast<const float*>(stage + padded_heads * 2 * dim);
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
  for (int32_t head = 0; head < padded_heads; head += 16) {
    float dots[2][2][4] = {};
#pragma unroll
    for (int32_t j = 0; j < groups; ++j) {
#pragma unroll
      for (int32_t n = 0; n < 2; ++n) {
        const uint4 v = queries[chunk_at(head + 8 * n + lane / 4, quad + 4 * j)];
        const uint32_t b0[2] = {v.x, v.y}, b1[2] = {v.z, v.w};
#pragma unroll
        for (int32_t m = 0; m < 2; ++m) {
          mma_bf16(dots[m][n], keys.a[m][2 * j], b0);
          mma_bf16(dots[m][n], keys.a[m][2 * j + 1], b1);
        }
      }
    }
#pragma unroll
    for (int32_t n = 0; n < 2; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const float weight = weights[head + 8 * n + 2 * quad + i] * factor;
#pragma unroll
        for (int32_t m = 0; m < 2; ++m) {
#pragma unroll
          for (int32_t half = 0; half < 2; ++half) {
            const float dot = dots[m][n][2 * half + i];
            sums[2 * m + half] = fma_(weight, dot > 0.0f ? dot : 0.0f, sums[2 * m + half]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    sums[i] += shuffle_xor(sums[i], 1);
    sums[i] += shuffle_xor(sums[i], 2);
  }
  const float mine = quad == 0 ? sums[0] : quad == 1 ? sums[1] : quad == 2 ? sums[2] : sums[3];
  return mine * keys.scale;
}

// Pools `tile`·256 … for rows first … last of one segment, those that see any of them and more than the budget.
TANDEM_DEVICE void score_tile(const ops::IndexBatch& args, const ops::SegmentView& segment, int32_t first, int32_t last,
                              int32_t tile, unsigned char* shared) {
  const ops::IndexSelectArgs& select = args.select;
  const int32_t position_of_row = segment.position - segment.first_row;
  const int32_t begin = tile * pools_of_block, end = pools_seen(last + position_of_row);
  const int32_t fewest = (begin > select.budget ? begin : select.budget) + 1;  // pools that a row here sees
  const int32_t enough = fewest * kpool - 1 - position_of_row;
  if (enough > first) first = enough;
  const int32_t padded_heads = (select.heads + 15) / 16 * 16, bytes = stage_bytes(padded_heads);
  __syncthreads();  // the last tile's queries have been read
#pragma unroll
  for (int32_t i = 0; i < stages - 1; ++i) {
    if (first + i <= last) start_row(select, first + i, padded_heads, shared + i * bytes);
    commit_copies();
  }
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t first_pool = begin + static_cast<int32_t>(threadIdx.x / 32) * pools_of_warp;
  Keys keys;
  load_keys(select.pooled, select.step.page_tables + segment.page_table, first_pool, end, keys);
  const int32_t pool = first_pool + lane % 4 * 8 + lane / 4;
  for (int32_t row = first; row <= last; ++row) {
    const int32_t number = row - first;
    wait_for_copies<stages - 2>();
    __syncthreads();
    const int32_t next = number + stages - 1;
    if (first + next <= last) start_row(select, first + next, padded_heads, shared + next % stages * bytes);
    commit_copies();
    const float score = score_row(keys, shared + number % stages * bytes, padded_heads, args.weight_factor);
    if (pool < pools_seen(row + position_of_row))
      args.scores[static_cast<int64_t>(row - args.first_row) * select.max_pools + pool] = score;
  }
}

// Blocks take every gridDim.x-th of the tiles of all units, so that the work follows the streams' lengths.
// Launched with 256 threads; the larger bound lets two blocks share the registers of a multiprocessor.
TANDEM_KERNEL(index_score, ops::IndexBatch, 512) {
  TANDEM_SHARED(unsigned char, shared);
  const ops::StepView& step = args.select.step;
  int32_t stop = args.first_row + args.rows;
  if (stop > step.counts[ops::step_rows]) stop = step.counts[ops::step_rows];
  if (args.first_row >= stop) return;
  auto item = static_cast<int32_t>(blockIdx.x);
  for (int32_t s = step.segment_of_row[args.first_row]; s < step.counts[ops::step_segments]; ++s) {
    const ops::SegmentView& segment = step.segments[s];
    if (segment.first_row >= stop) return;
    const int32_t end = segment.first_row + segment.rows < stop ? segment.first_row + segment.rows : stop;
    for (int32_t first = segment.first_row > args.first_row ? segment.first_row : args.first_row; first < end;
         first += args.rows_of_unit) {
      const int32_t last = (first + args.rows_of_unit < end ? first + args.rows_of_unit : end) - 1;
      const int32_t pools = pools_seen(segment.position + last - segment.first_row);
      if (pools <= args.select.budget) continue;
      const int32_t tiles = (pools + pools_of_block - 1) / pools_of_block;
      for (; item < tiles; item += static_cast<int32_t>(gridDim.x))
        score_tile(args, segment, first, last, item, shared);
      item -= tiles;
    }
  }
}

// Queries as FP8 keys want them: each head rotated and coded, its scale in the head's weight. A warp a head. In place.
TANDEM_KERNEL(index_queries, ops::IndexBatch, 256) {
  __shared__ float rows_of_warps[threads / 32][dim];
  const ops::IndexSelectArgs& select = args.select;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), warp = static_cast<int32_t>(threadIdx.x / 32);
  const int64_t number = static_cast<int64_t>(blockIdx.x) * (threads / 32) + warp;
  const int64_t row = number / select.heads, head = number % select.heads;
  if (row >= select.step.counts[ops::step_rows] || pools_seen(select.step.positions[row]) <= select.budget) return;
  bf16* q = select.q + row * select.q_stride + head * dim;
  float* values = rows_of_warps[warp];
  for (int32_t i = lane; i < dim; i += 32) values[i] = to_float(q[i]);
  __syncwarp();
  quant::rotate_index(values, dim, lane);
  const uint32_t largest = quant::largest_magnitude(values, 0, dim, lane);
  const float scale = quant::rotated_scale(largest);
  const bool finite = quant::is_finite_magnitude(largest);
  for (int32_t i = lane; i < dim; i += 32) {
    const uint32_t code = finite ? quant::e4m3_encode(values[i] / scale) : quant::e4m3_nan;
    q[i] = to_bf16(quant::e4m3_value(code));
  }
  if (lane == 0) select.head_weights[row * select.weights_stride + head] *= scale;
}

}  // namespace
