// Scores pools and keeps the best on the CPU.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "ops/index/index_select.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {
namespace {

// Pools that the row at position t sees.
int64_t pools_seen(const IndexSelect& a, int64_t t) { return (t + 1) / a.kpool; }

// The keys of pools first … first + n − 1 of one page as they are stored, or decoded into `buffer`.
constexpr int64_t key_buffer = 16384;  // values
Matrix keys_of(const IndexSelect& a, int64_t first, int64_t n, float* buffer) {
  Matrix keys;
  keys.out_features = n;
  keys.in_features = keys.leaf_columns = a.dim;
  if (is_plain(a.pooled.element)) {
    keys.format = a.pooled.element == CacheElement::bf16 ? WeightFormat::bf16 : WeightFormat::f32;
    keys.data = a.pooled.row(first);
    return keys;
  }
  const int64_t place = a.pooled.place(first);
  for (int64_t i = 0; i < n; ++i) a.pooled.load_place(place + i, buffer + i * a.dim);
  keys.format = WeightFormat::f32;
  keys.data = reinterpret_cast<const std::byte*>(buffer);
  return keys;
}

// scores[i] = Σ_h w[h]·relu(dim^-0.5·(q_h·K_p)), heads ascending, for the i-th pool p < pools that is here; returns
// their number.
int64_t score_row(const IndexSelect& a, const float* q, const float* weights, int64_t pools, float* scores) {
  const Kernels& k = kernels();
  const float factor = 1.0f / std::sqrt(static_cast<float>(a.dim));
  const int64_t page = a.pooled.rows_of_page;
  const int64_t most = is_plain(a.pooled.element) ? page : std::max<int64_t>(1, key_buffer / a.dim);  // pools at a time
  float dots[max_tile_rows * page_rows];
  alignas(64) float decoded[key_buffer];
  int64_t count = 0;
  for (int64_t first = a.pooled.rank * page; first < pools;) {
    const int64_t in_page = page - first % page, n = std::min({in_page, pools - first, most});
    std::fill_n(scores + count, n, 0.0f);
    const Matrix keys = keys_of(a, first, n, decoded);
    for (int64_t head = 0; head < a.heads; head += max_tile_rows) {
      MatmulTile t;
      t.w = &keys;
      t.last_output = n;
      t.last_column = a.dim;
      t.x = q + head * a.dim;
      t.x_stride = a.dim;
      t.rows = std::min(max_tile_rows, a.heads - head);
      t.y = dots;
      t.y_stride = n;
      k.matmul(t);
      for (int64_t h = 0; h < t.rows; ++h)
        k.relu_accumulate(weights[head + h], factor, dots + h * n, n, scores + count);
    }
    count += n;
    first += n == in_page ? n + (a.pooled.ranks - 1) * page : n;
  }
  return count;
}

// A row's queries as FP8 keys want them: each head rotated and rounded, its scale in the head's weight.
void quantize_queries(const IndexSelect& a, float* q, float* weights) {
  const quant::CacheRecord key = a.pooled.record();
  std::byte codes[1024];
  for (int64_t h = 0; h < a.heads; ++h, q += a.dim) {
    quant::rotate_index(q, a.dim);
    weights[h] *= quant::quantize_rotated(q, a.dim, codes);
    const float one = 1.0f;
    quant::decode_record(key, codes, reinterpret_cast<const std::byte*>(&one), q);
  }
}

int64_t score_row(const IndexSelect& a, int64_t row, float* scores) {
  float* weights = a.head_weights + row * a.heads;
  kernels().scale(weights, 1.0f / std::sqrt(static_cast<float>(a.heads)), a.heads, weights);
  if (!is_plain(a.pooled.element)) quantize_queries(a, a.q + row * a.heads * a.dim, weights);
  return score_row(a, a.q + row * a.heads * a.dim, weights, pools_seen(a, a.position + row), scores);
}

// Leaves the `budget` best of n > budget entries by (score descending, id ascending) at the front of `order`, in no
// order; id(entry) is the entry's pool. Returns the distance of the scores at the cut.
template <typename Id>
float choose(const float* scores, int64_t n, int64_t budget, int32_t* order, const Id& id) {
  std::iota(order, order + n, 0);
  const auto better = [&](int32_t x, int32_t y) {
    return scores[x] != scores[y] ? scores[x] > scores[y] : id(x) < id(y);
  };
  std::nth_element(order, order + budget, order + n, better);
  const float next = scores[order[budget]];
  float worst = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < budget; ++i) worst = std::min(worst, scores[order[i]]);
  return worst - next;
}

// The row's tokens from its chosen pools, in any order.
void finish_row(const IndexSelect& a, int64_t row, int32_t* pools, int64_t count, float gap) {
  std::sort(pools, pools + count);
  int32_t* selected = a.selected + row * a.max_selected;
  a.counts[row] = static_cast<int32_t>(expand_selection(pools, count, a.position + row, a.kpool, selected));
  if (a.gaps != nullptr) a.gaps[row] = gap;
}

void all_pools(const IndexSelect& a, int64_t row, int32_t* order) {
  const int64_t pools = pools_seen(a, a.position + row);
  std::iota(order, order + pools, 0);
  finish_row(a, row, order, pools, std::numeric_limits<float>::infinity());
}

void select_row(const IndexSelect& a, int64_t row, float* scores, int32_t* order) {
  if (pools_seen(a, a.position + row) <= a.budget) return all_pools(a, row, order);
  const int64_t pools = score_row(a, row, scores);
  const float gap = choose(scores, pools, a.budget, order, [](int32_t entry) { return entry; });
  finish_row(a, row, order, a.budget, gap);
}

// Pools below `pools` that rank `rank` of `ranks` holds.
int64_t pools_held(const IndexSelect& a, int64_t pools, int64_t rank, int64_t ranks) {
  const int64_t page = a.pooled.rows_of_page, round = page * ranks;
  return pools / round * page + std::clamp<int64_t>(pools % round - rank * page, 0, page);
}

void candidates_of_row(const IndexSelect& a, int64_t row, float* scores, int32_t* order, float* out) {
  const int64_t pools = pools_seen(a, a.position + row), most = a.budget + 1, page = a.pooled.rows_of_page;
  if (pools <= a.budget) return;
  const int64_t here = score_row(a, row, scores);
  if (here > most) {
    choose(scores, here, most, order, [](int32_t entry) { return entry; });
  } else {
    std::iota(order, order + here, 0);
  }
  for (int64_t i = 0; i < std::min(here, most); ++i) {
    const int64_t entry = order[i] / page * a.pooled.ranks + a.pooled.rank;  // of the page table
    out[i] = scores[order[i]];
    out[most + i] = std::bit_cast<float>(static_cast<int32_t>(entry * page + order[i] % page));
  }
}

void choose_of_row(const IndexSelect& a, int64_t row, std::span<const float* const> candidates, float* scores,
                   int32_t* order) {
  const int64_t pools = pools_seen(a, a.position + row), most = a.budget + 1, size = index_candidates_size(a.budget);
  if (pools <= a.budget) return all_pools(a, row, order);
  const auto ranks = static_cast<int64_t>(candidates.size());
  int64_t n = 0, starts[2] = {};  // of the ranks' entries in `scores`
  if (ranks > 2) throw Error(ErrorCode::internal, "index_choose", "more than two ranks");
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t count = std::min(most, pools_held(a, pools, rank, ranks));
    starts[rank] = n;
    std::copy_n(candidates[static_cast<size_t>(rank)] + row * size, count, scores + n);
    n += count;
  }
  const auto id = [&](int32_t entry) {
    const int64_t rank = ranks > 1 && entry >= starts[1] ? 1 : 0;
    return std::bit_cast<int32_t>(candidates[static_cast<size_t>(rank)][row * size + most + entry - starts[rank]]);
  };
  const float gap = choose(scores, n, a.budget, order, id);
  for (int64_t i = 0; i < a.budget; ++i) order[i] = id(order[i]);
  finish_row(a, row, order, a.budget, gap);
}

// Calls body(row, scores, order) for every row on some thread.
template <typename Body>
void for_rows(device::Threads& threads, const IndexSelect& a, const Body& body) {
  const int64_t lanes = std::min<int64_t>(threads.count(), a.rows);
  threads.run(lanes, [&](int64_t lane) {
    for (int64_t row = lane; row < a.rows; row += lanes)
      body(row, a.scores + lane * a.max_pools, a.order + lane * a.max_pools);
  });
}

}  // namespace

int64_t expand_selection(const int32_t* pools, int64_t count, int64_t t, int64_t kpool, int32_t* out) {
  int64_t n = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < kpool; ++j) out[n++] = static_cast<int32_t>(pools[i] * kpool + j);
  }
  for (int64_t p = t + 1 - (t + 1) % kpool; p <= t; ++p) out[n++] = static_cast<int32_t>(p);
  return n;
}

void index_select(device::Threads& threads, const IndexSelect& a) {
  for_rows(threads, a, [&](int64_t row, float* scores, int32_t* order) { select_row(a, row, scores, order); });
}

bool index_needs_scores(const IndexSelect& a) { return pools_seen(a, a.position + a.rows - 1) > a.budget; }

void index_candidates(device::Threads& threads, const IndexSelect& a, float* out) {
  for_rows(threads, a, [&](int64_t row, float* scores, int32_t* order) {
    candidates_of_row(a, row, scores, order, out + row * index_candidates_size(a.budget));
  });
}

void index_choose(device::Threads& threads, const IndexSelect& a, std::span<const float* const> candidates) {
  for_rows(threads, a,
           [&](int64_t row, float* scores, int32_t* order) { choose_of_row(a, row, candidates, scores, order); });
}

}  // namespace tandem::ops
