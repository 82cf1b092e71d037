// kv_b_proj on both sides of the latent attention on a GPU (mla_absorb.h): batched linears, a batch entry a head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/linear/linear_args.h"

namespace tandem::ops {

struct CudaMlaAbsorb {
  int32_t heads = 0, key_dim = 0, value_dim = 0, kv_lora_rank = 0;

  // The key halves of kv_b [heads · (key_dim + value_dim), kv_lora_rank] transposed: [heads, kv_lora_rank, key_dim],
  // the same bits in another place. On the host, when weights are loaded.
  std::vector<device::bf16> transposed_keys(const device::bf16* kv_b) const;

  // absorbed[r, h] = Wk_hᵀ q[r, h]: q bf16 [rows, heads, key_dim], absorbed bf16 [rows, heads, kv_lora_rank].
  // `keys`: transposed_keys in device memory.
  CudaLinearCall absorb_query(const device::bf16* keys, const device::bf16* q, device::bf16* absorbed) const;
  // out[r, h] = Wv_h l[r, h]: l bf16 [rows, heads, kv_lora_rank], out bf16 [rows, heads, value_dim]. `kv_b` as stored,
  // in device memory.
  CudaLinearCall expand_value(const device::bf16* kv_b, const device::bf16* l, device::bf16* out) const;
};

}  // namespace tandem::ops
