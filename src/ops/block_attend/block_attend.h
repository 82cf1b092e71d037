// Attention of the DFlash2 drafter's blocks: all rows of a block see each other, and history backward through a window
// (spec/speculation.md 1.5).
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/threads.h"
#include "ops/latent/pages.h"

namespace tandem::ops {

// One stream's context rows of one layer: a ring indexed by position modulo ring_rows. A row holds keys [kv_heads,
// head_dim], then values.
struct ContextRows {
  const std::byte* data = nullptr;
  int64_t ring_rows = 0;
  CacheElement element = CacheElement::f32;
  int64_t first = 0;  // positions in [first, position of the block) may be read, no others
};

// Row r of a block at position s sees the block's rows and context positions κ < s with s + r − κ ≤ window − 1.
struct BlockAttend {
  int64_t blocks = 0, block_rows = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;
  float scale = 0.0f;
  const float* q = nullptr;                // [blocks, block_rows, heads, head_dim], turned
  const float *k = nullptr, *v = nullptr;  // [blocks, block_rows, kv_heads, head_dim], keys turned
  const ContextRows* context = nullptr;    // [blocks]
  const int64_t* positions = nullptr;      // [blocks] of the first rows
  float* scratch = nullptr;                // [threads, block_attend_scratch()]
  float* out = nullptr;                    // [blocks, block_rows, heads, head_dim]
};
int64_t block_attend_scratch(int64_t block_rows, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window);
void block_attend(device::Threads& threads, const BlockAttend& args);

}  // namespace tandem::ops
