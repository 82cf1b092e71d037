// Bytes of cache by storage format, with the formulas of spec/model.md 1.4: one latent row for a token, one pooled key
// for index_kpool tokens, and the states of KDA that do not grow.
#include "model/cache_bytes.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace tandem::model {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

CacheBytes cache_bytes(const Shape& shape) {
  const int64_t latent = shape.kv_lora_rank, key = shape.index_head_dim;
  const int64_t fp8_key = key + 4;                                   // codes and one fp32 scale
  const int64_t fp8_tiles = latent + 4 * ceil_div(latent, 128);      // codes and one fp32 scale for 128 values
  const int64_t nvfp4 = ceil_div(latent, 2) + ceil_div(latent, 16);  // codes and one e4m3 scale for 16 values
  CacheBytes bytes;
  bytes.rows = {
      {"f32 latent, f32 keys", 4 * latent, 4 * key},
      {"bf16 latent, bf16 keys", 2 * latent, 2 * key},
      {"bf16 latent, fp8 keys", 2 * latent, fp8_key},
      {"fp8 latent (one scale a tensor), fp8 keys", latent, fp8_key},
      {"fp8 latent (scales of 128), fp8 keys", fp8_tiles, fp8_key},
      {"nvfp4 latent (padded record), fp8 keys", nvfp4 + 4 + 4 + 8, fp8_key},  // zeros, fp32 outer scale, padding
      {"nvfp4 latent (no padding), fp8 keys", nvfp4, fp8_key},
  };
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

CacheRow cache_row(const Shape& shape, std::string_view kv_cache_dtype) {
  const auto& rows = cache_bytes(shape).rows;
  if (kv_cache_dtype == "f32") return rows[0];
  if (kv_cache_dtype == "bf16") return rows[1];
  if (kv_cache_dtype == "fp8") return rows[4];
  if (kv_cache_dtype == "nvfp4") return rows[5];
  throw Error(ErrorCode::usage, "--kv-cache-dtype", "\"" + std::string(kv_cache_dtype) + "\"",
              "auto, f32, bf16, fp8 or nvfp4");
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
