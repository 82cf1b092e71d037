// Bytes of a token's cache rows by --kv-cache-dtype, and how many tokens a pool holds (spec/model.md 1.4,
// spec/runtime.md b.1).
#pragma once

#include <cstdint>
#include <string_view>

#include "model/inventory.h"
#include "quant/cache_records.h"

namespace tandem::model {

// --kv-cache-dtype: how latent rows and pooled index keys are stored. Values are part of recordings
// (docs/internals/formats.md).
enum class CacheType : uint8_t {
  f32 = 0,
  bf16 = 1,
  fp8 = 2,             // latents with a scale for 128 values, FP8 keys
  fp8_row = 3,         // latents with one power-of-two scale, FP8 keys
  nvfp4 = 4,           // NVFP4 latents, FP8 keys
  bf16_fp8_index = 5,  // bf16 latents, FP8 keys
};
inline constexpr CacheType all_cache_types[] = {CacheType::f32,     CacheType::bf16,  CacheType::fp8,
                                                CacheType::fp8_row, CacheType::nvfp4, CacheType::bf16_fp8_index};
inline constexpr std::string_view cache_type_names = "f32, bf16, fp8, fp8_row, nvfp4 or bf16_fp8_index";

std::string_view name_of(CacheType type);
// Throws Error(usage) that lists the names ("auto" is the caller's business).
CacheType parse_cache_type(std::string_view name);

// The records of a type: what the pool stores, what the planner counts and what docs/internals/formats.md shows.
struct CacheRecords {
  quant::CacheRecord latent;  // of one token and layer, kv_lora_rank values
  quant::CacheRecord pooled;  // of one pool and layer, index_head_dim values
};
CacheRecords cache_records(int64_t kv_lora_rank, int64_t index_head_dim, CacheType type);
CacheRecords cache_records(const Shape& shape, CacheType type);  // Throws Error(usage): keys no power of two wide

// The sizes of those records.
CacheRow cache_row(const Shape& shape, CacheType type);

// Bytes of one token in `layers` layers, with pooled keys that stand for `tokens_per_pool` tokens: 11 layers of 528 and
// 144 bytes are 6,204.
double token_bytes(int64_t layers, const CacheRow& row, int64_t tokens_per_pool);

// Bytes of one page of `page_rows` tokens, a multiple of tokens_per_pool.
int64_t page_bytes(int64_t layers, const CacheRow& row, int64_t tokens_per_pool, int64_t page_rows);

}  // namespace tandem::model
