// Attention of absorbed queries over the selected latent rows (sparse_attend.h; spec/model.md 4.3).
//
// A block has 16 or 32 heads of a row as the M operand and runs over the selected keys in tiles of 64, which are both
// keys and values: scores by tensor cores over columns in blocks of 128 (each block's sum times the keys' scale of that
// block, added ascending), a running softmax in fp32, then the probabilities times the scale, cut into two bf16 parts
// (error 2^-17), against the same rows. Codes of FP8 and NVFP4 records are exact in bf16 and scales stay fp32, so what
// is multiplied is what the CPU reads but for roundings of fp32.
//
// Sums of a row: the keys of a leaf by ordinal in tiles of 64, each a softmax of its own, joined ascending from
// nothing, then leaf 0 and leaf 1. Kernels by splits have a block for each tile and join in a kernel of their own
// (decode: many blocks); kernels by rows have a block for a row and join in registers, eight columns at a time. The
// bits are the same, and the same for 16 and 32 heads. Two blocks by rows share a multiprocessor: one's keys arrive
// while the other multiplies.
//
// Floor: 4·heads·kv_lora_rank operations a key and row, 131,072 for the real model: 164 ps at 800 TFLOP/s, 0.34 µs a
// row of 2,051 keys; latent rows gathered, 2.1 MB a row (bf16): 0.48 µs at 4.4 TB/s for one row, from the second cache
// for many.
#include "ops/attend/sparse_attend_tile.h"

namespace {

using namespace tandem;
using namespace tandem::ops::attend;

constexpr int32_t score_stride = 72;  // floats of a head's scores: pairs of four heads lie in different banks
constexpr int32_t lanes_of_head = 8, keys_of_lane = tile_keys / lanes_of_head;

// A block's shared memory; ops/attend/sparse_attend_cuda.cc counts the same bytes.
template <int32_t Tiles>
struct Memory {
  static constexpr int32_t heads = 16 * Tiles;
  unsigned char *queries, *keys;  // [heads, row_stride], [tile_keys, row_stride]
  float *scores, *scales;         // [heads, score_stride], [tile_keys, scale_blocks]
  float* weights[2];              // [heads]: of the sums so far, of the tile's
  int32_t *scan, *places;         // [warps], [tile_keys]
};

template <int32_t Tiles>
TANDEM_DEVICE Memory<Tiles> memory_of(unsigned char* shared) {
  constexpr int32_t heads = Memory<Tiles>::heads;
  Memory<Tiles> memory;
  memory.queries = shared;
  memory.keys = memory.queries + heads * row_stride;
  memory.scores = reinterpret_cast<float*>(memory.keys + tile_keys * row_stride);
  memory.scales = memory.scores + heads * score_stride;
  memory.weights[0] = memory.scales + tile_keys * scale_blocks;
  memory.weights[1] = memory.weights[0] + heads;
  memory.scan = reinterpret_cast<int32_t*>(memory.weights[1] + heads);
  memory.places = memory.scan + warps;
  return memory;
}

// What a thread holds of a block's sums: columns of heads l/4 and l/4 + 8 of its warp's tile; threads below 8·heads
// also a head's softmax.
template <int32_t Tiles>
struct Sums {
  static constexpr int32_t groups = warps / Tiles;                 // of columns
  static constexpr int32_t pairs = (steps + groups - 1) / groups;  // of eight columns, of a group
  static_assert(scale_blocks == 1 || quant::record_tile % (pairs * 16) == 0, "a group has one scale");
  float acc[2 * pairs][4];
  float largest, sum;
};

template <int32_t Tiles>
TANDEM_DEVICE void clear(Sums<Tiles>& sums) {
#pragma unroll
  for (int32_t i = 0; i < 2 * Sums<Tiles>::pairs; ++i) {
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) sums.acc[i][j] = 0.0f;
  }
  sums.largest = bits_to_float(0xff800000u);
  sums.sum = 0.0f;
}

// Calls body(head of the block, column, i, j) for this thread's acc[i][j].
template <int32_t Tiles, typename Body>
TANDEM_DEVICE void for_values(const Body& body) {
  const int32_t lane = thread() % 32, warp = thread() / 32, tile = warp % Tiles;
  const int32_t first = warp / Tiles * Sums<Tiles>::pairs * 16;
#pragma unroll
  for (int32_t i = 0; i < 2 * Sums<Tiles>::pairs; ++i) {
    if (first + i * 8 >= rank) continue;
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) body(tile * 16 + lane / 4 + j / 2 * 8, first + i * 8 + lane % 4 * 2 + j % 2, i, j);
  }
}

template <int32_t Tiles>
TANDEM_DEVICE void load_queries(const ops::SparseAttendArgs& args, int32_t row, int32_t first_head,
                                unsigned char* queries) {
  for (int32_t i = thread(); i < 16 * Tiles * chunks; i += threads) {
    const int32_t head = i / chunks, chunk = i % chunks;
    const bool present = first_head + head < args.heads && chunk < rank / 8;
    const int64_t at = (static_cast<int64_t>(row) * args.heads + first_head + head) * rank + chunk * 8;
    copy_async_16(queries + head * row_stride + chunk * 16, args.q + (present ? at : 0), present);
  }
}

// scores[head, key] of a tile: scaled, −inf from `count` on.
template <int32_t Tiles>
TANDEM_DEVICE void score_tile(const Memory<Tiles>& memory, const unsigned char* keys, const float* scales,
                              int32_t count, float scale) {
  constexpr int32_t parts = Tiles;  // eight keys each, of a warp
  const int32_t lane = thread() % 32, warp = thread() / 32, tile = warp % Tiles, first = warp / Tiles * parts * 8;
  const unsigned char* a_row = memory.queries + (tile * 16 + lane % 16) * row_stride + lane / 16 * 16;
  const unsigned char* b_row = parts == 2 ? keys + (first + lane / 16 * 8 + lane % 8) * row_stride + lane / 8 % 2 * 16
                                          : keys + (first + lane % 8) * row_stride + lane / 8 * 16;
  float total[parts][4] = {};
#pragma unroll
  for (int32_t block = 0; block < scale_blocks; ++block) {
    float part[parts][4] = {};
#pragma unroll
    for (int32_t i = 0; i < quant::record_tile / 16; i += 2) {
      const int32_t step = block * (quant::record_tile / 16) + i;
      if (step >= steps) break;
      uint32_t a[2][4], b[2][4];  // of two steps
      // One part: the four matrices are two steps of eight keys; behind the last step lanes read its columns again.
      const int32_t back = parts == 1 && step + 1 >= steps ? lane / 16 * 32 : 0;
      load_matrices(a[0], a_row + step * 32);
      load_matrices(b[0], b_row + step * 32 - back);
      if (step + 1 < steps) {
        load_matrices(a[1], a_row + step * 32 + 32);
        if (parts == 2) load_matrices(b[1], b_row + step * 32 + 32);
      }
#pragma unroll
      for (int32_t j = 0; j < 2; ++j) {
        if (step + j >= steps) break;
#pragma unroll
        for (int32_t n = 0; n < parts; ++n) {
          const uint32_t pair[2] = {parts == 2 ? b[j][2 * n] : b[0][2 * j],
                                    parts == 2 ? b[j][2 * n + 1] : b[0][2 * j + 1]};
          mma_bf16(part[n], a[j], pair);
        }
      }
    }
#pragma unroll
    for (int32_t n = 0; n < parts; ++n) {
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        const int32_t key = first + n * 8 + lane % 4 * 2 + j % 2;
        total[n][j] = fma_(scales[key * scale_blocks + block], part[n][j], total[n][j]);
      }
    }
  }
#pragma unroll
  for (int32_t n = 0; n < parts; ++n) {
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      const int32_t key = first + n * 8 + lane % 4 * 2 + j % 2, head = tile * 16 + lane / 4 + j / 2 * 8;
      memory.scores[head * score_stride + key] = key < count ? total[n][j] * scale : bits_to_float(0xff800000u);
    }
  }
}

// Scores become exp(score − the tile's largest), and the tile's softmax joins the one so far; weights: what either's
// rows are multiplied by. Eight lanes a head.
template <int32_t Tiles>
TANDEM_DEVICE void soften_tile(const Memory<Tiles>& memory, Sums<Tiles>& sums) {
  if (thread() >= Memory<Tiles>::heads * lanes_of_head) return;  // whole warps
  const int32_t head = thread() / lanes_of_head, part = thread() % lanes_of_head;
  float* scores = memory.scores + head * score_stride + part * keys_of_lane;
  float p[keys_of_lane], largest = scores[0], sum = 0.0f;
#pragma unroll
  for (int32_t i = 0; i < keys_of_lane; ++i) {
    p[i] = scores[i];
    largest = p[i] > largest ? p[i] : largest;
  }
#pragma unroll
  for (uint32_t mask = 1; mask < lanes_of_head; mask *= 2) {
    const float other = shuffle_xor(largest, mask);
    largest = other > largest ? other : largest;
  }
#pragma unroll
  for (int32_t i = 0; i < keys_of_lane; ++i) {
    p[i] = exp_(p[i] - largest);
    sum += p[i];
    scores[i] = p[i];
  }
#pragma unroll
  for (uint32_t mask = 1; mask < lanes_of_head; mask *= 2) sum += shuffle_xor(sum, mask);
  float weight, tile_weight;
  join(sums.largest, sums.sum, largest, sum, weight, tile_weight);
  if (part != 0) return;
  memory.weights[0][head] = weight;
  memory.weights[1][head] = tile_weight;
}

// acc = weight·acc + tile's weight·Σ p·row over the tile.
template <int32_t Tiles>
TANDEM_DEVICE void combine_tile(const Memory<Tiles>& memory, Sums<Tiles>& sums) {
  constexpr int32_t pairs = Sums<Tiles>::pairs, key_steps = tile_keys / 16;
  const int32_t lane = thread() % 32, warp = thread() / 32, tile = warp % Tiles, group = warp / Tiles;
  const int32_t head = tile * 16 + lane / 4, first_pair = group * pairs;
  const int32_t block = first_pair * 16 / quant::record_tile;  // of the scales
  if (first_pair >= steps) return;
  uint32_t high[key_steps][4], low[key_steps][4];
#pragma unroll
  for (int32_t step = 0; step < key_steps; ++step) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t key = step * 16 + i / 2 * 8 + lane % 4 * 2;
      const float* p = memory.scores + (head + i % 2 * 8) * score_stride + key;
      const float scale[2] = {memory.scales[key * scale_blocks + block],
                              memory.scales[(key + 1) * scale_blocks + block]};
      uint32_t& both = high[step][i];
      both = pack_bf16(p[0] * scale[0], p[1] * scale[1]);
      // An explicit fma: a compiler may make one of a product and a difference, and must not choose.
      low[step][i] = pack_bf16(fma_(p[0], scale[0], -first_of(both)), fma_(p[1], scale[1], -second_of(both)));
    }
  }
  const float weights[2] = {memory.weights[0][head], memory.weights[0][head + 8]};
  const float tile_weights[2] = {memory.weights[1][head], memory.weights[1][head + 8]};
  const unsigned char* b_row =
      memory.keys + (lane / 8 % 2 * 8 + lane % 8) * row_stride + lane / 16 * 16 + first_pair * 32;
#pragma unroll
  for (int32_t pair = 0; pair < pairs; ++pair) {
    if (first_pair + pair >= steps) break;
    float of_tile[2][4] = {};
#pragma unroll
    for (int32_t step = 0; step < key_steps; ++step) {
      uint32_t b[4];
      load_matrices_transposed(b, b_row + step * 16 * row_stride + pair * 32);
#pragma unroll
      for (int32_t n = 0; n < 2; ++n) {
        const uint32_t of_eight[2] = {b[2 * n], b[2 * n + 1]};
        mma_bf16(of_tile[n], high[step], of_eight);
        mma_bf16(of_tile[n], low[step], of_eight);
      }
    }
#pragma unroll
    for (int32_t n = 0; n < 2; ++n) {
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        float& acc = sums.acc[2 * pair + n][j];
        acc = joined(acc, weights[j / 2], of_tile[n][j], tile_weights[j / 2]);
      }
    }
  }
}

// A tile's keys, memory.places[0 … count), join the sums. Queries are on their way or there. next_places: where the
// places of the tile after this one stand (next_count of them), which take this one's.
template <int32_t Tiles>
TANDEM_DEVICE void attend_tile(const ops::SparseAttendLaunch& args, const Memory<Tiles>& memory, int32_t count,
                               const int32_t* next_places, int32_t next_count, Sums<Tiles>& sums) {
  __syncthreads();  // the tile before is done with, and the places are there
  load_tile(args.attend.latent, memory.places, count, memory.keys, memory.scales);
  commit_copies();
  const int32_t next_place = thread() < next_count ? next_places[thread()] : 0;
  wait_for_copies<0>();
  __syncthreads();
  if (thread() < next_count) memory.places[thread()] = next_place;
  score_tile<Tiles>(memory, memory.keys, memory.scales, count, args.attend.scale);
  __syncthreads();
  soften_tile<Tiles>(memory, sums);
  __syncthreads();
  combine_tile<Tiles>(memory, sums);
}

TANDEM_DEVICE int32_t splits_of(int32_t keys) { return (keys + ops::attend_split - 1) / ops::attend_split; }

TANDEM_DEVICE const int32_t* page_table_of(const ops::StepView& step, int32_t row) {
  return step.page_tables + step.segments[step.segment_of_row[row]].page_table;
}

// A block for a split of a row and some heads: blockIdx = (split, heads, row).
template <int32_t Tiles>
TANDEM_DEVICE void attend_split_of_row(const ops::SparseAttendLaunch& args, unsigned char* shared) {
  const ops::SparseAttendArgs& attend = args.attend;
  const auto split = static_cast<int32_t>(blockIdx.x), row = static_cast<int32_t>(blockIdx.z);
  const int32_t first_head = static_cast<int32_t>(blockIdx.y) * 16 * Tiles;
  if (row >= attend.step.counts[ops::step_rows]) return;
  const Memory<Tiles> memory = memory_of<Tiles>(shared);
  load_queries<Tiles>(attend, row, first_head, memory.queries);
  commit_copies();
  int32_t count = 0;
  const auto choose = [&](const Leaves& leaves, int32_t& of_leaf, int32_t& first, int32_t& last) {
    const int32_t of_even = splits_of(leaves.count[0]);
    of_leaf = split < of_even ? 0 : 1;
    first = (of_leaf == 0 ? split : split - of_even) * ops::attend_split;
    const int32_t all = of_leaf == 0 ? leaves.count[0] : leaves.count[1];
    last = first + ops::attend_split < all ? first + ops::attend_split : all;
    count = last - first;
  };
  const Leaves leaves = find_places(attend, page_table_of(attend.step, row), row, memory.scan, memory.places, choose);
  if (split == 0 && blockIdx.y == 0 && thread() == 0) {
    args.splits[2 * row] = splits_of(leaves.count[0]);
    args.splits[2 * row + 1] = splits_of(leaves.count[1]);
  }
  if (count <= 0) {
    wait_for_copies<0>();
    return;
  }
  Sums<Tiles> sums;
  clear(sums);
  attend_tile<Tiles>(args, memory, count, nullptr, 0, sums);
  const int64_t at = (static_cast<int64_t>(row) * args.max_splits + split) * attend.heads + first_head;
  const int32_t heads = attend.heads - first_head;
  for_values<Tiles>([&](int32_t head, int32_t column, int32_t i, int32_t j) {
    if (head < heads) args.partial[(at + head) * rank + column] = sums.acc[i][j];
  });
  const int32_t head = thread() / lanes_of_head;
  if (thread() % lanes_of_head == 0 && head < Memory<Tiles>::heads && head < heads) {
    args.partial_sums[2 * (at + head)] = sums.largest;
    args.partial_sums[2 * (at + head) + 1] = sums.sum;
  }
}

// A block for all of a row and some heads; blocks take every gridDim.x-th.
template <int32_t Tiles>
TANDEM_DEVICE void attend_row(const ops::SparseAttendLaunch& args, int32_t row, int32_t first_head,
                              const Memory<Tiles>& memory) {
  const ops::SparseAttendArgs& attend = args.attend;
  __syncthreads();  // the row before is done with
  load_queries<Tiles>(attend, row, first_head, memory.queries);
  commit_copies();
  const auto of_both = [](const Leaves&, int32_t&, int32_t&, int32_t&) {};
  int32_t* places = args.places + static_cast<int64_t>(blockIdx.x) * attend.max_selected;
  const Leaves leaves = find_places(attend, page_table_of(attend.step, row), row, memory.scan, places, of_both);
  const bool both = leaves.count[0] > 0 && leaves.count[1] > 0;
  float* kept = args.partial + static_cast<int64_t>(blockIdx.x) * 16 * Tiles * rank;  // leaf 0's
  float kept_largest = 0.0f, kept_sum = 0.0f;
  const int32_t my_head = thread() / lanes_of_head;
  const bool writes = thread() % lanes_of_head == 0 && my_head < Memory<Tiles>::heads;
  Sums<Tiles> total;
  const int32_t of_leaf_0 = leaves.count[0], all = of_leaf_0 + leaves.count[1];
  // Keys of the tile that begins with ordinal `at` of both leaves' one after the other.
  const auto keys_of_tile = [&](int32_t at) {
    const int32_t left = (at < of_leaf_0 ? of_leaf_0 : all) - at;
    return left < tile_keys ? left : tile_keys;
  };
  if (thread() < keys_of_tile(0)) memory.places[thread()] = places[thread()];
#pragma unroll 1
  for (int32_t leaf = 0; leaf < 2; ++leaf) {
    const int32_t keys = leaf == 0 ? leaves.count[0] : leaves.count[1];
    if (keys == 0) continue;
    clear(total);
#pragma unroll 1
    for (int32_t first = 0; first < keys; first += tile_keys) {
      const int32_t at = leaf * of_leaf_0 + first, count = keys_of_tile(at), next = at + count;
      attend_tile<Tiles>(args, memory, count, places + next, next < all ? keys_of_tile(next) : 0, total);
    }
    if (leaf == 0 && both) {
      kept_largest = total.largest;
      kept_sum = total.sum;
      for_values<Tiles>(
          [&](int32_t head, int32_t column, int32_t i, int32_t j) { kept[head * rank + column] = total.acc[i][j]; });
    }
  }
  // Every thread reads what it wrote itself.
  float weight = 0.0f, other_weight = 0.0f;
  if (both) {
    join(kept_largest, kept_sum, total.largest, total.sum, weight, other_weight);
    weight /= kept_sum;
    other_weight /= kept_sum;
  } else {
    other_weight = 1.0f / total.sum;
  }
  __syncthreads();
  if (writes) {
    memory.weights[0][my_head] = weight;
    memory.weights[1][my_head] = other_weight;
  }
  __syncthreads();
  const int32_t heads = attend.heads - first_head;
  bf16* out = attend.out + (static_cast<int64_t>(row) * attend.heads + first_head) * rank;
  for_values<Tiles>([&](int32_t head, int32_t column, int32_t i, int32_t j) {
    if (head >= heads) return;
    const float value =
        both ? joined(kept[head * rank + column], memory.weights[0][head], total.acc[i][j], memory.weights[1][head])
             : total.acc[i][j] * memory.weights[1][head];
    out[head * rank + column] = to_bf16(value);
  });
}

template <int32_t Tiles>
TANDEM_DEVICE void attend_rows(const ops::SparseAttendLaunch& args, unsigned char* shared) {
  const Memory<Tiles> memory = memory_of<Tiles>(shared);
  const int32_t items = args.attend.step.counts[ops::step_rows] * args.head_blocks;
  for (auto item = static_cast<int32_t>(blockIdx.x); item < items; item += static_cast<int32_t>(gridDim.x))
    attend_row<Tiles>(args, item / args.head_blocks, item % args.head_blocks * 16 * Tiles, memory);
}

TANDEM_KERNEL(attend_splits_16, ops::SparseAttendLaunch, 256) {
  TANDEM_SHARED(unsigned char, shared);
  attend_split_of_row<1>(args, shared);
}
TANDEM_KERNEL(attend_splits_32, ops::SparseAttendLaunch, 256) {
  TANDEM_SHARED(unsigned char, shared);
  attend_split_of_row<2>(args, shared);
}
TANDEM_KERNEL(attend_rows_16, ops::SparseAttendLaunch, 256, 2) {
  TANDEM_SHARED(unsigned char, shared);
  attend_rows<1>(args, shared);
}
TANDEM_KERNEL(attend_rows_32, ops::SparseAttendLaunch, 256, 2) {
  TANDEM_SHARED(unsigned char, shared);
  attend_rows<2>(args, shared);
}

}  // namespace
