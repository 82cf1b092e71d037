// Both sides of kv_b_proj as calls of CudaLinear, and the transposed copy that the query's side reads.
#include "ops/attend/mla_absorb_cuda.h"

namespace tandem::ops {

std::vector<device::bf16> CudaMlaAbsorb::transposed_keys(const device::bf16* kv_b) const {
  const int64_t rank = kv_lora_rank, key = key_dim;
  std::vector<device::bf16> out(static_cast<std::size_t>(heads * rank * key));
  for (int64_t head = 0; head < heads; ++head) {
    const device::bf16* from = kv_b + head * (key + value_dim) * rank;
    device::bf16* to = out.data() + head * rank * key;
    for (int64_t k = 0; k < key; ++k)
      for (int64_t l = 0; l < rank; ++l) to[l * key + k] = from[k * rank + l];
  }
  return out;
}

CudaLinearCall CudaMlaAbsorb::absorb_query(const device::bf16* keys, const device::bf16* q,
                                           device::bf16* absorbed) const {
  const int64_t rank = kv_lora_rank;
  CudaLinearCall call{
      {keys, kv_lora_rank, key_dim, key_dim, key_dim}, q, int64_t{heads} * key_dim, absorbed, heads * rank, false};
  call.batch = heads;
  call.w_batch_stride = rank * key_dim;
  call.x_batch_stride = key_dim;
  call.y_batch_stride = rank;
  return call;
}

CudaLinearCall CudaMlaAbsorb::expand_value(const device::bf16* kv_b, const device::bf16* l, device::bf16* out) const {
  const int64_t rank = kv_lora_rank;
  CudaLinearCall call{{kv_b + key_dim * rank, value_dim, kv_lora_rank, kv_lora_rank, kv_lora_rank},
                      l,
                      heads * rank,
                      out,
                      int64_t{heads} * value_dim,
                      false};
  call.batch = heads;
  call.w_batch_stride = (int64_t{key_dim} + value_dim) * rank;
  call.x_batch_stride = rank;
  call.y_batch_stride = value_dim;
  return call;
}

}  // namespace tandem::ops
