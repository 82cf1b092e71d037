// Attention of absorbed queries over the selected latent rows (spec/model.md 4.2, 4.3).
#pragma once

#include <cstdint>

#include "device/threads.h"
#include "ops/latent/pages.h"

namespace tandem::ops {

// One segment. Keys of even pages are leaf 0, of odd pages leaf 1; each leaf has its own softmax, and the two are
// merged: with a leaf's largest scaled score m, l = Σ exp(score − m) and acc = Σ exp(score − m)·row, M = max(m0, m1),
// e_i = exp(m_i − M) and L = l0·e0 + l1·e1, out = fma(e1/L, acc1, (e0/L)·acc0); a leaf alone gives acc·(1/l)
// (design.md 1). K and V are the same latent row.
struct SparseAttend {
  int64_t heads = 0, kv_lora_rank = 0;
  int64_t rows = 0;
  float scale = 0.0f;                 // qk_nope_head_dim^-0.5
  const float* q = nullptr;           // [rows, heads, kv_lora_rank] absorbed queries
  PagedPlane latent;                  // row = token
  const int32_t* selected = nullptr;  // [rows, max_selected] token positions, ascending
  const int32_t* counts = nullptr;    // [rows], ≥ 1
  int64_t max_selected = 0;
  float* scratch = nullptr;          // [threads, sparse_attend_scratch()] floats
  const float** pointers = nullptr;  // scratch [threads, max_selected]
  float* out = nullptr;              // [rows, heads, kv_lora_rank]
};
int64_t sparse_attend_scratch(int64_t max_selected, int64_t kv_lora_rank, CacheElement element = CacheElement::f32);
void sparse_attend(device::Threads& threads, const SparseAttend& args);

// The same in two parts, for ranks that hold one leaf's pages each.
//
// What a leaf of a row comes to: acc [heads, kv_lora_rank], then m [heads], then l [heads].
constexpr int64_t attend_leaf_size(int64_t heads, int64_t kv_lora_rank) { return heads * (kv_lora_rank + 2); }
// partial [rows, attend_leaf_size()]; a row without a key in this leaf is left alone. Does not use args.out.
void attend_leaf(device::Threads& threads, const SparseAttend& args, int64_t leaf, float* partial);
// args.out from both leaves; only the rows, heads, selection and out of args, and the page size of its plane, are used.
void merge_attend_leaves(device::Threads& threads, const SparseAttend& args, const float* leaf0, const float* leaf1);

}  // namespace tandem::ops
