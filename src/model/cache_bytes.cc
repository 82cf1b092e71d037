// Bytes of cache by storage format, with the formulas of spec/model.md 1.4: one latent row for a token, one pooled key
// for index_kpool tokens, and the states of KDA that do not grow.
#include "model/cache_bytes.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>

#include "base/error.h"

namespace tandem::model {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

using quant::RecordKind;

struct TypeEntry {
  CacheType type;
  std::string_view name;
  const char* format;  // as in tables
  RecordKind latent, pooled;
};
constexpr TypeEntry types[] = {
    {CacheType::f32, "f32", "f32 latent, f32 keys", RecordKind::f32, RecordKind::f32},
    {CacheType::bf16, "bf16", "bf16 latent, bf16 keys", RecordKind::bf16, RecordKind::bf16},
    {CacheType::fp8, "fp8", "fp8 latent (scales of 128), fp8 keys", RecordKind::latent_fp8, RecordKind::index_fp8},
    {CacheType::fp8_row, "fp8_row", "fp8 latent (one scale a row), fp8 keys", RecordKind::latent_fp8_row,
     RecordKind::index_fp8},
    {CacheType::nvfp4, "nvfp4", "nvfp4 latent (padded record), fp8 keys", RecordKind::latent_nvfp4,
     RecordKind::index_fp8},
    {CacheType::bf16_fp8_index, "bf16_fp8_index", "bf16 latent, fp8 keys", RecordKind::bf16, RecordKind::index_fp8},
};
static_assert(std::size(types) == std::size(all_cache_types));

const TypeEntry& entry_of(CacheType type) { return types[static_cast<size_t>(type)]; }

}  // namespace

std::string_view name_of(CacheType type) { return entry_of(type).name; }

CacheType parse_cache_type(std::string_view name) {
  for (const TypeEntry& entry : types)
    if (entry.name == name) return entry.type;
  throw Error(ErrorCode::usage, "--kv-cache-dtype", "\"" + std::string(name) + "\"",
              "auto, " + std::string(cache_type_names));
}

CacheRecords cache_records(int64_t kv_lora_rank, int64_t index_head_dim, CacheType type) {
  const TypeEntry& entry = entry_of(type);
  return {quant::cache_record(entry.latent, kv_lora_rank), quant::cache_record(entry.pooled, index_head_dim)};
}

CacheRecords cache_records(const Shape& shape, CacheType type) {
  return cache_records(shape.kv_lora_rank, shape.index_head_dim, type);
}

CacheRow cache_row(const Shape& shape, CacheType type) {
  const CacheRecords records = cache_records(shape, type);
  return {entry_of(type).format, records.latent.bytes, records.pooled.bytes};
}

CacheBytes cache_bytes(const Shape& shape) {
  CacheBytes bytes;
  const bool rotates = std::has_single_bit(static_cast<uint64_t>(shape.index_head_dim));
  for (const TypeEntry& entry : types)
    if (rotates || entry.pooled != RecordKind::index_fp8) bytes.rows.push_back(cache_row(shape, entry.type));
  if (rotates) {  // records of other engines, for comparison (spec/model.md 1.4)
    const int64_t latent = shape.kv_lora_rank, key = bytes.rows.back().pool_bytes;
    bytes.rows.push_back({"fp8 latent (one scale a tensor), fp8 keys", latent, key});
    bytes.rows.push_back({"nvfp4 latent (no padding), fp8 keys", ceil_div(latent, 2) + ceil_div(latent, 16), key});
  }
  bytes.dsa_layers = std::count(shape.layer_types.begin(), shape.layer_types.end(), AttentionKind::dsa);
  bytes.mtp_layers = shape.num_nextn_predict_layers;
  bytes.tokens_per_pool = shape.index_kpool;
  const int64_t kda_layers = shape.num_hidden_layers - bytes.dsa_layers;
  bytes.kda_state_bytes = kda_layers * shape.kda_width() * shape.kda_head_dim * 4;
  const int64_t window = kda_layers * (shape.short_conv_kernel_size - 1) * 3 * shape.kda_width();
  bytes.conv_bf16_bytes = window * 2;
  bytes.conv_f32_bytes = window * 4;
  return bytes;
}

double token_bytes(int64_t layers, const CacheRow& row, int64_t tokens_per_pool) {
  const double index = static_cast<double>(row.pool_bytes) / static_cast<double>(tokens_per_pool);
  return static_cast<double>(layers) * (static_cast<double>(row.latent_bytes) + index);
}

int64_t page_bytes(int64_t layers, const CacheRow& row, int64_t tokens_per_pool, int64_t page_rows) {
  return layers * (page_rows * row.latent_bytes + page_rows / tokens_per_pool * row.pool_bytes);
}

double CacheBytes::bytes_per_token(const CacheRow& row, bool with_mtp) const {
  return token_bytes(dsa_layers + (with_mtp ? mtp_layers : 0), row, tokens_per_pool);
}

int64_t CacheBytes::bytes_for(const CacheRow& row, int64_t tokens, bool with_mtp) const {
  const int64_t layers = dsa_layers + (with_mtp ? mtp_layers : 0);
  return layers * (row.latent_bytes * tokens + row.pool_bytes * (tokens / tokens_per_pool));
}

}  // namespace tandem::model
