// The text model's weights in a GPU's memory: matrices as bf16, vectors as fp32, one allocation. Matrices that a
// checkpoint stores as F32 are rounded to bf16 once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "device/gpu.h"
#include "model/shape.h"
#include "model/weights.h"
#include "ops/experts/experts_args.h"
#include "ops/linear/linear_args.h"
#include "ops/mhc/mhc_args.h"

namespace tandem::forward {

struct GpuKda {
  ops::CudaMatrix q_proj, k_proj, v_proj, f_a_proj, g_a_proj, f_b_proj, g_b_proj, b_proj, o_proj;
  const float* taps;     // [kernel, 3·heads·dim]
  const float* rate;     // [heads] exp(A_log)
  const float* dt_bias;  // [heads·dim]
  const float* o_norm;   // [dim]
};

struct GpuDsa {
  ops::CudaMatrix q_a_proj, q_b_proj, kv_a_proj, o_proj;
  const device::bf16* kv_b;       // as stored
  const device::bf16* kv_b_keys;  // the key halves transposed: [heads, kv_lora_rank, key_dim]
  const float *q_a_layernorm, *kv_a_layernorm;
  ops::CudaMatrix index_wq_b, index_wk, index_weights_proj, index_gate;
  const float *index_ape, *index_norm, *index_norm_bias;
};

struct GpuFeedForward {
  ops::CudaMatrix router;             // of a MoE layer
  const float* bias;                  // [experts]
  const ops::ExpertPointers* routed;  // [experts that are here] in device memory
  ops::ExpertPointers shared;         // the shared expert or the dense MLP
  int64_t shared_width, shared_leaf;
  bool moe;
};

struct GpuLayer {
  const float *input_layernorm, *post_attention_layernorm;
  ops::CudaMhcSite attn_site, ffn_site;  // not of the MTP layer
  std::optional<GpuKda> kda;
  std::optional<GpuDsa> dsa;
  GpuFeedForward feed_forward;
  int64_t state_layer;  // among the KDA layers, or among the layers with token caches
};

struct GpuMtp {
  const float *enorm, *hnorm, *shared_head_norm;
  ops::CudaMatrix eh_proj;
  GpuLayer layer;
};

// The weights that a rank has; `shape` is the rank's.
class GpuWeights {
 public:
  // Throws Error(bad_file) for a weight format that no CUDA kernel reads yet, Error(does_not_fit).
  GpuWeights(device::Gpu& gpu, const model::Shape& shape, const model::TextWeights& weights, bool mtp);
  static int64_t bytes(const model::Shape& shape, const model::TextWeights& weights, bool mtp);

  ops::CudaMatrix embed_tokens{}, lm_head{};
  const float* norm = nullptr;
  std::vector<GpuLayer> layers;
  std::optional<GpuMtp> mtp;

 private:
  device::GpuMemory memory_;
};

}  // namespace tandem::forward
