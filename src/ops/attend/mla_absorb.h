// kv_b_proj applied on the query's and on the output's side, so that attention runs on latent rows (spec/model.md 4.3).
#pragma once

#include <cstdint>

#include "device/threads.h"
#include "ops/linear/matrix.h"

namespace tandem::ops {

struct MlaAbsorb {
  const Matrix* kv_b = nullptr;  // BF16 or F32 [heads·(key_dim + value_dim), kv_lora_rank], key rows of a head first
  int64_t heads = 0, key_dim = 0, value_dim = 0;
  int64_t rows = 0;
};

// out[row, h] = Wk_hᵀ q[row, h]: q [rows, heads, key_dim], out [rows, heads, kv_lora_rank].
void mla_absorb_query(device::Threads& threads, const MlaAbsorb& args, const float* q, float* out);
// out[row, h] = Wv_h l[row, h]: l [rows, heads, kv_lora_rank], out [rows, heads, value_dim].
void mla_expand_value(device::Threads& threads, const MlaAbsorb& args, const float* l, float* out);

}  // namespace tandem::ops
