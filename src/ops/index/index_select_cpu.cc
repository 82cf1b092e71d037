// Scores pools and keeps the best on the CPU.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/index/index_select.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {
namespace {

// scores[p] = Σ_h w[h]·relu(dim^-0.5·(q_h·K_p)) for p < pools, heads ascending.
void score_row(const IndexSelect& a, const float* q, const float* weights, int64_t pools, float* scores) {
  const Kernels& k = kernels();
  const float factor = 1.0f / std::sqrt(static_cast<float>(a.dim));
  const int64_t page = a.pooled.rows_of_page;
  float dots[max_tile_rows * page_rows];
  for (int64_t first = 0; first < pools; first += page) {
    const int64_t n = std::min(page, pools - first);
    std::fill_n(scores + first, n, 0.0f);
    Matrix keys;
    keys.format = a.pooled.element == CacheElement::bf16 ? WeightFormat::bf16 : WeightFormat::f32;
    keys.data = a.pooled.row(first);
    keys.out_features = n;
    keys.in_features = keys.leaf_columns = a.dim;
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
        k.relu_accumulate(weights[head + h], factor, dots + h * n, n, scores + first);
    }
  }
}

// The `budget` best of `pools` ids by (score descending, id ascending), left in ascending id order at the front.
float choose(const float* scores, int64_t pools, int64_t budget, int32_t* order) {
  std::iota(order, order + pools, 0);
  const auto better = [scores](int32_t x, int32_t y) { return scores[x] != scores[y] ? scores[x] > scores[y] : x < y; };
  std::nth_element(order, order + budget, order + pools, better);
  const float next = scores[order[budget]];
  std::sort(order, order + budget);
  float worst = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < budget; ++i) worst = std::min(worst, scores[order[i]]);
  return worst - next;
}

void select_row(const IndexSelect& a, int64_t row, float* scores, int32_t* order) {
  const int64_t t = a.position + row;
  const int64_t pools = (t + 1) / a.kpool;
  int64_t count = pools;
  float gap = std::numeric_limits<float>::infinity();
  if (pools > a.budget) {
    float* weights = a.head_weights + row * a.heads;
    kernels().scale(weights, 1.0f / std::sqrt(static_cast<float>(a.heads)), a.heads, weights);
    score_row(a, a.q + row * a.heads * a.dim, weights, pools, scores);
    gap = choose(scores, pools, a.budget, order);
    count = a.budget;
  } else {
    std::iota(order, order + pools, 0);
  }
  a.counts[row] = static_cast<int32_t>(expand_selection(order, count, t, a.kpool, a.selected + row * a.max_selected));
  if (a.gaps != nullptr) a.gaps[row] = gap;
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

void index_select(device::Threads& threads, const IndexSelect& args) {
  const int64_t lanes = std::min<int64_t>(threads.count(), args.rows);
  threads.run(lanes, [&](int64_t lane) {
    for (int64_t row = lane; row < args.rows; row += lanes) {
      select_row(args, row, args.scores + lane * args.max_pools, args.order + lane * args.max_pools);
    }
  });
}

}  // namespace tandem::ops
