// Attention over the selected latent rows on the CPU.
#include <algorithm>

#include "ops/attend/sparse_attend.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {
namespace {

constexpr int64_t head_block = 8;  // heads that share the reads of a latent row

struct Leaf {
  float largest[head_block];  // of the scaled scores
  float sum[head_block];      // Σ exp(score − largest)
};

// Softmax sums and Σ p·c of one leaf for `heads` heads; acc [heads, kv_lora_rank].
void attend_leaf(const SparseAttend& a, const float* q, int64_t heads, const float* const* keys, int64_t count,
                 float* scores, Leaf& leaf, float* acc) {
  const Kernels& k = kernels();
  DotRows dots;
  dots.w_rows = keys;
  dots.count = count;
  dots.k = a.kv_lora_rank;
  dots.x = q;
  dots.x_stride = a.kv_lora_rank;
  dots.rows = heads;
  dots.y = scores;
  dots.y_stride = count;
  k.dot_rows(dots);
  for (int64_t h = 0; h < heads; ++h) {
    float* s = scores + h * count;
    k.scale(s, a.scale, count, s);
    leaf.largest[h] = *std::max_element(s, s + count);
    k.exp_minus(s, leaf.largest[h], count, s);
    leaf.sum[h] = k.sum(s, count);
  }
  CombineRows values;
  values.pointers = keys;
  values.count = count;
  values.dims = a.kv_lora_rank;
  values.x = scores;
  values.x_stride = count;
  values.rows = heads;
  values.out = acc;
  values.out_stride = a.kv_lora_rank;
  k.combine_rows(values);
}

// Pointers to the selected rows, leaf 0 first; returns how many are in leaf 0.
int64_t gather(const SparseAttend& a, int64_t row, const float** keys) {
  const int32_t* selected = a.selected + row * a.max_selected;
  int64_t n = 0, even = 0;
  for (int64_t parity = 0; parity < 2; ++parity) {
    for (int64_t i = 0; i < a.counts[row]; ++i) {
      if (selected[i] / page_rows % 2 == parity) keys[n++] = a.latent.row(selected[i]);
    }
    if (parity == 0) even = n;
  }
  return even;
}

void merge(const Leaf& x, const float* acc_x, const Leaf& y, const float* acc_y, int64_t head, int64_t n, float* out) {
  const Kernels& k = kernels();
  const float largest = std::max(x.largest[head], y.largest[head]);
  float weights[2] = {x.largest[head], y.largest[head]};
  k.exp_minus(weights, largest, 2, weights);
  const float total = x.sum[head] * weights[0] + y.sum[head] * weights[1];
  k.scale(acc_x, weights[0] / total, n, out);
  k.accumulate(weights[1] / total, acc_y, n, out);
}

void attend_row(const SparseAttend& a, int64_t row, int64_t first_head, int64_t heads, float* scratch,
                const float** keys) {
  const int64_t even = gather(a, row, keys), count = a.counts[row];
  const float* q = a.q + (row * a.heads + first_head) * a.kv_lora_rank;
  float* out = a.out + (row * a.heads + first_head) * a.kv_lora_rank;
  float* acc[2] = {scratch, scratch + head_block * a.kv_lora_rank};
  float* scores = scratch + 2 * head_block * a.kv_lora_rank;
  Leaf leaves[2];
  if (even > 0) attend_leaf(a, q, heads, keys, even, scores, leaves[0], acc[0]);
  if (even < count) attend_leaf(a, q, heads, keys + even, count - even, scores, leaves[1], acc[1]);
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t at = h * a.kv_lora_rank;
    if (even > 0 && even < count) {
      merge(leaves[0], acc[0] + at, leaves[1], acc[1] + at, h, a.kv_lora_rank, out + at);
    } else {
      const int64_t only = even > 0 ? 0 : 1;
      kernels().scale(acc[only] + at, 1.0f / leaves[only].sum[h], a.kv_lora_rank, out + at);
    }
  }
}

}  // namespace

int64_t sparse_attend_scratch(int64_t max_selected, int64_t kv_lora_rank) {
  return head_block * (2 * kv_lora_rank + max_selected);
}

void sparse_attend(device::Threads& threads, const SparseAttend& a) {
  // With few rows the heads are what the threads share.
  const int64_t by_threads = (a.heads + threads.count() - 1) / threads.count();
  const int64_t block = std::min(head_block, a.rows >= threads.count() ? a.heads : by_threads);
  const int64_t blocks = (a.heads + block - 1) / block, items = a.rows * blocks;
  const int64_t lanes = std::min<int64_t>(threads.count(), items);
  const int64_t scratch = sparse_attend_scratch(a.max_selected, a.kv_lora_rank);
  threads.run(lanes, [&](int64_t lane) {
    for (int64_t item = lane; item < items; item += lanes) {
      const int64_t head = item % blocks * block;
      attend_row(a, item / blocks, head, std::min(block, a.heads - head), a.scratch + lane * scratch,
                 a.pointers + lane * a.max_selected);
    }
  });
}

}  // namespace tandem::ops
