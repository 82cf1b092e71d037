// Bytes of a token's cache rows by --kv-cache-dtype, and how many tokens a pool holds (spec/model.md 1.4,
// spec/runtime.md b.1).
#pragma once

#include <cstdint>
#include <string_view>

#include "model/inventory.h"

namespace tandem::model {

// The row format of a --kv-cache-dtype: f32, bf16, fp8 (latent with a scale for 128 values) or nvfp4 (latent records
// padded for 16-byte loads); fp8 and nvfp4 have fp8 index keys. Throws Error(usage) for any other name.
CacheRow cache_row(const Shape& shape, std::string_view kv_cache_dtype);

// Bytes of one token in `layers` layers, with pooled keys that stand for `tokens_per_pool` tokens: 11 layers of 528 and
// 144 bytes are 6,204.
double token_bytes(int64_t layers, const CacheRow& row, int64_t tokens_per_pool);

// Bytes of one page of `page_rows` tokens, a multiple of tokens_per_pool.
int64_t page_bytes(int64_t layers, const CacheRow& row, int64_t tokens_per_pool, int64_t page_rows);

}  // namespace tandem::model
