// Latent rows as a block of sparse_attend.cu sees them: a tile of keys in shared memory as bf16 values that are exact
// (values of bf16 records, codes of the others), and the fp32 scales that the codes are to be multiplied by.
#pragma once

#include "device/kernel.h"
#include "ops/attend/sparse_attend_args.h"
#include "quant/cache_records_device.h"

namespace tandem::ops::attend {

using namespace tandem::device;

constexpr int32_t rank = TANDEM_KV_LORA_RANK;
constexpr int32_t padded_rank = (rank + 15) / 16 * 16;
constexpr int32_t steps = padded_rank / 16;                                             // of k
constexpr int32_t chunks = padded_rank / 8;                                             // of 16 bytes
constexpr int32_t scale_blocks = (rank + quant::record_tile - 1) / quant::record_tile;  // of columns
constexpr int32_t row_stride = padded_rank * 2 + 16;  // bytes; 16 more, so that eight rows lie in different banks
constexpr int32_t tile_keys = 64;
constexpr int32_t threads = 256, warps = threads / 32;
static_assert(rank % 8 == 0, "rows are read in pieces of 16 bytes");
static_assert(attend_split == tile_keys);

TANDEM_DEVICE int32_t thread() { return static_cast<int32_t>(threadIdx.x); }

// Eight codes of a record from value 8·chunk on; words are read as words where records lie at multiples of them.
TANDEM_DEVICE uint32_t word_at(const uint8_t* from, bool aligned) {
  if (aligned) return *reinterpret_cast<const uint32_t*>(from);
  return static_cast<uint32_t>(from[0]) | static_cast<uint32_t>(from[1]) << 8 | static_cast<uint32_t>(from[2]) << 16 |
         static_cast<uint32_t>(from[3]) << 24;
}
TANDEM_DEVICE uint4 eight_values(const PlaneView& plane, const uint8_t* record, int32_t chunk) {
  const bool aligned = plane.row_bytes % 4 == 0;
  if (plane.kind == quant::record_latent_nvfp4) {
    const uint32_t scale = record[quant::nvfp4_scales_at(rank) + chunk * 8 / quant::record_group];
    return quant::nvfp4_eight(word_at(record + chunk * 4, aligned), quant::e4m3_value(scale));
  }
  return quant::e4m3_eight(word_at(record + chunk * 8, aligned), word_at(record + chunk * 8 + 4, aligned));
}
// What the codes of columns 128·block … are multiplied by.
TANDEM_DEVICE float scale_of(const PlaneView& plane, const uint8_t* record, int32_t block) {
  if (plane.kind == quant::record_latent_fp8) return quant::load_float(record + rank + 4 * block);
  if (plane.kind == quant::record_latent_fp8_row) return quant::load_float(record + rank);
  if (plane.kind == quant::record_latent_nvfp4) return quant::load_float(record + quant::nvfp4_outer_at(rank));
  return 1.0f;
}

// Keys `places`[0 … count) of a tile to shared memory, zeros after them; bf16 rows arrive with the caller's group of
// copies. scales [tile_keys, scale_blocks].
TANDEM_DEVICE void load_tile(const PlaneView& plane, const int32_t* places, int32_t count, unsigned char* keys,
                             float* scales) {
  const bool plain = plane.kind == quant::record_bf16;
#pragma unroll 4
  for (int32_t i = thread(); i < tile_keys * chunks; i += threads) {
    const int32_t key = i / chunks, chunk = i % chunks;
    const bool present = key < count && chunk < rank / 8;
    const uint8_t* record = plane.data + static_cast<int64_t>(present ? places[key] : 0) * plane.row_bytes;
    unsigned char* to = keys + key * row_stride + chunk * 16;
    if (plain) {
      copy_async_16(to, record + (present ? chunk * 16 : 0), present);
    } else {
      *reinterpret_cast<uint4*>(to) = present ? eight_values(plane, record, chunk) : make_uint4(0, 0, 0, 0);
    }
  }
  for (int32_t i = thread(); i < tile_keys * scale_blocks; i += threads) {
    const int32_t key = i / scale_blocks;
    const uint8_t* record = plane.data + static_cast<int64_t>(key < count ? places[key] : 0) * plane.row_bytes;
    scales[i] = key < count ? scale_of(plane, record, i % scale_blocks) : 0.0f;
  }
}

// Where the selected tokens of a row lie, by leaf (parity of the page's number).
struct Leaves {
  int32_t count[2];
};

// Writes the places of the tokens whose ordinal in the row's leaf `of_leaf` is in [first, last), or, with of_leaf < 0,
// of all: leaf 0's, then leaf 1's. choose(leaves) is called by every thread once the counts are known and says which.
// places: in shared memory, or the block's own in global memory. scratch: `warps` words of shared memory. By the whole
// block, with a barrier at the end.
template <typename Choose>
TANDEM_DEVICE Leaves find_places(const SparseAttendArgs& args, const int32_t* page_table, int32_t row, int32_t* scratch,
                                 int32_t* places, const Choose& choose) {
  const int32_t* selected = args.selected + static_cast<int64_t>(row) * args.max_selected;
  const int32_t count = args.counts[row], each = (count + threads - 1) / threads;
  const int32_t begin = thread() * each < count ? thread() * each : count;
  const int32_t end = begin + each < count ? begin + each : count;
  const auto rows_of_page = static_cast<uint32_t>(args.latent.rows_of_page);
  int32_t even = 0;
  for (int32_t i = begin; i < end; ++i) even += static_cast<uint32_t>(selected[i]) / rows_of_page % 2 == 0 ? 1 : 0;
  const int32_t lane = thread() % 32, warp = thread() / 32;
  int32_t sum = even;
#pragma unroll
  for (int32_t step = 1; step < 32; step *= 2) {
    const int32_t lower = shuffle(sum, static_cast<uint32_t>(lane >= step ? lane - step : lane));
    if (lane >= step) sum += lower;
  }
  __syncthreads();
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  int32_t before = sum - even, total = 0;
  for (int32_t i = 0; i < warps; ++i) {
    before += i < warp ? scratch[i] : 0;
    total += scratch[i];
  }
  const Leaves leaves{{total, count - total}};
  int32_t of_leaf = -1, first = 0, last = 0;
  choose(leaves, of_leaf, first, last);
  int32_t ordinal[2] = {before, begin - before};
  for (int32_t i = begin; i < end; ++i) {
    const auto token = static_cast<uint32_t>(selected[i]);
    const uint32_t entry = token / rows_of_page;
    const auto leaf = static_cast<int32_t>(entry % 2);
    const int32_t at = leaf == 0 ? ordinal[0]++ : ordinal[1]++;
    const int32_t place =
        page_table[entry] * static_cast<int32_t>(rows_of_page) + static_cast<int32_t>(token - entry * rows_of_page);
    if (of_leaf < 0) {
      places[leaf * total + at] = place;
    } else if (leaf == of_leaf && at >= first && at < last) {
      places[at - first] = place;
    }
  }
  __syncthreads();
  return leaves;
}

// Two softmax sums (largest score, Σ exp, Σ exp·row) become one: the weights of what was and of what comes.
TANDEM_DEVICE void join(float& largest, float& sum, float other_largest, float other_sum, float& weight,
                        float& other_weight) {
  const float most = other_largest > largest ? other_largest : largest;
  weight = exp_(largest - most);
  other_weight = exp_(other_largest - most);
  sum = fma_(other_sum, other_weight, sum * weight);
  largest = most;
}
TANDEM_DEVICE float joined(float value, float weight, float other, float other_weight) {
  return fma_(other_weight, other, weight * value);
}

}  // namespace tandem::ops::attend
