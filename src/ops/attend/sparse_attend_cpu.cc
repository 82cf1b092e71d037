// Attention over the selected latent rows on the CPU.
#include <algorithm>

#include "ops/attend/sparse_attend.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {
namespace {

constexpr int64_t head_block = 8;  // heads that share the reads of a latent row

// One leaf of a row for some heads.
struct Leaf {
  float* acc;      // [heads, kv_lora_rank] Σ exp(score − largest)·row
  float* largest;  // [heads] of the scaled scores
  float* sum;      // [heads] Σ exp(score − largest)
};

Leaf leaf_of_row(const SparseAttend& a, float* partial, int64_t row, int64_t first_head) {
  float* acc = partial + row * attend_leaf_size(a.heads, a.kv_lora_rank);
  float* largest = acc + a.heads * a.kv_lora_rank;
  return {acc + first_head * a.kv_lora_rank, largest + first_head, largest + a.heads + first_head};
}

// Calls key(page entry, row in that page) for the row's selected tokens of a leaf, ascending.
template <typename Key>
void for_keys(const SparseAttend& a, int64_t row, int64_t leaf, const Key& key) {
  const int32_t* selected = a.selected + row * a.max_selected;
  const int64_t rows_of_page = a.latent.rows_of_page;
  int64_t entry = 0, begin = 0, end = 0;  // the page of the last token: divisions are dear
  for (int64_t i = 0; i < a.counts[row]; ++i) {
    if (selected[i] >= end) {
      entry = selected[i] / rows_of_page;
      begin = entry * rows_of_page;
      end = begin + rows_of_page;
    }
    if (entry % 2 == leaf) key(entry, selected[i] - begin);
  }
}

bool has_leaf(const SparseAttend& a, int64_t row, int64_t leaf) {
  bool any = false;
  for_keys(a, row, leaf, [&any](int64_t, int64_t) { any = true; });
  return any;
}

// One thread's scratch.
struct Lane {
  float *scores, *decoded, *leaves;
  const float** keys;

  Lane(const SparseAttend& a, int64_t lane)
      : scores(a.scratch + lane * sparse_attend_scratch(a.max_selected, a.kv_lora_rank, a.latent.element)),
        decoded(scores + head_block * (2 * a.kv_lora_rank + 4 + a.max_selected)),
        leaves(scores + head_block * a.max_selected),
        keys(a.pointers + lane * a.max_selected) {}

  // Pointers to the row's selected keys of a leaf; returns their number.
  int64_t gather(const SparseAttend& a, int64_t row, int64_t leaf) const {
    const int64_t row_bytes = a.latent.row_bytes();
    int64_t n = 0;
    for_keys(a, row, leaf, [&](int64_t entry, int64_t index) {
      const int64_t place = a.latent.page_table[entry] * a.latent.rows_of_page + index;
      if (a.latent.element == CacheElement::f32) {
        keys[n++] = reinterpret_cast<const float*>(a.latent.data + place * row_bytes);
      } else {
        float* key = decoded + n * a.kv_lora_rank;
        a.latent.load_place(place, key);
        keys[n++] = key;
      }
    });
    return n;
  }
};

// Softmax sums and Σ p·c over `count` keys for `heads` heads with the queries q.
void attend_keys(const SparseAttend& a, const float* q, int64_t heads, const Lane& lane, int64_t count,
                 const Leaf& leaf) {
  const Kernels& k = kernels();
  DotRows dots;
  dots.w_rows = lane.keys;
  dots.count = count;
  dots.k = a.kv_lora_rank;
  dots.x = q;
  dots.x_stride = a.kv_lora_rank;
  dots.rows = heads;
  dots.y = lane.scores;
  dots.y_stride = count;
  k.dot_rows(dots);
  for (int64_t h = 0; h < heads; ++h) {
    float* s = lane.scores + h * count;
    k.scale(s, a.scale, count, s);
    leaf.largest[h] = *std::max_element(s, s + count);
    k.exp_minus(s, leaf.largest[h], count, s);
    leaf.sum[h] = k.sum(s, count);
  }
  CombineRows values;
  values.pointers = lane.keys;
  values.count = count;
  values.dims = a.kv_lora_rank;
  values.x = lane.scores;
  values.x_stride = count;
  values.rows = heads;
  values.out = leaf.acc;
  values.out_stride = a.kv_lora_rank;
  k.combine_rows(values);
}

// out [heads, n] from the leaves that are there.
void merge(const Leaf& x, bool has_x, const Leaf& y, bool has_y, int64_t heads, int64_t n, float* out) {
  const Kernels& k = kernels();
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t at = h * n;
    if (!has_x || !has_y) {
      const Leaf& only = has_x ? x : y;
      k.scale(only.acc + at, 1.0f / only.sum[h], n, out + at);
      continue;
    }
    const float largest = std::max(x.largest[h], y.largest[h]);
    float weights[2] = {x.largest[h], y.largest[h]};
    k.exp_minus(weights, largest, 2, weights);
    const float total = x.sum[h] * weights[0] + y.sum[h] * weights[1];
    k.scale(x.acc + at, weights[0] / total, n, out + at);
    k.accumulate(weights[1] / total, y.acc + at, n, out + at);
  }
}

// Calls task(row, first head, heads, lane) for every row and block of heads. With few rows the heads are what the
// threads share.
template <typename Task>
void for_blocks(device::Threads& threads, const SparseAttend& a, const Task& task) {
  if (a.heads == 0 || a.rows == 0) return;
  const int64_t by_threads = (a.heads + threads.count() - 1) / threads.count();
  const int64_t block = std::min(head_block, a.rows >= threads.count() ? a.heads : by_threads);
  const int64_t blocks = (a.heads + block - 1) / block, items = a.rows * blocks;
  const int64_t lanes = std::min<int64_t>(threads.count(), items);
  threads.run(lanes, [&](int64_t lane) {
    for (int64_t item = lane; item < items; item += lanes) {
      const int64_t head = item % blocks * block;
      task(item / blocks, head, std::min(block, a.heads - head), lane);
    }
  });
}

}  // namespace

int64_t sparse_attend_scratch(int64_t max_selected, int64_t kv_lora_rank, CacheElement element) {
  const int64_t decoded = element == CacheElement::f32 ? 0 : max_selected * kv_lora_rank;
  return head_block * (2 * kv_lora_rank + 4 + max_selected) + decoded;
}

void sparse_attend(device::Threads& threads, const SparseAttend& a) {
  for_blocks(threads, a, [&a](int64_t row, int64_t head, int64_t heads, int64_t index) {
    const Lane lane(a, index);
    const int64_t at = (row * a.heads + head) * a.kv_lora_rank;
    Leaf leaves[2];
    bool has[2];
    for (int64_t i = 0; i < 2; ++i) {
      float* acc = lane.leaves + i * attend_leaf_size(head_block, a.kv_lora_rank);
      float* largest = acc + head_block * a.kv_lora_rank;
      leaves[i] = {acc, largest, largest + head_block};
      const int64_t count = lane.gather(a, row, i);
      has[i] = count > 0;
      if (has[i]) attend_keys(a, a.q + at, heads, lane, count, leaves[i]);
    }
    merge(leaves[0], has[0], leaves[1], has[1], heads, a.kv_lora_rank, a.out + at);
  });
}

void attend_leaf(device::Threads& threads, const SparseAttend& a, int64_t leaf, float* partial) {
  for_blocks(threads, a, [&](int64_t row, int64_t head, int64_t heads, int64_t index) {
    const Lane lane(a, index);
    const int64_t count = lane.gather(a, row, leaf);
    const float* q = a.q + (row * a.heads + head) * a.kv_lora_rank;
    if (count > 0) attend_keys(a, q, heads, lane, count, leaf_of_row(a, partial, row, head));
  });
}

void merge_attend_leaves(device::Threads& threads, const SparseAttend& a, const float* leaf0, const float* leaf1) {
  for_blocks(threads, a, [&](int64_t row, int64_t head, int64_t heads, int64_t) {
    merge(leaf_of_row(a, const_cast<float*>(leaf0), row, head), has_leaf(a, row, 0),
          leaf_of_row(a, const_cast<float*>(leaf1), row, head), has_leaf(a, row, 1), heads, a.kv_lora_rank,
          a.out + (row * a.heads + head) * a.kv_lora_rank);
  });
}

}  // namespace tandem::ops
