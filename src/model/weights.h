// Every weight of the text model under its meaning. Large matrices are views into the checkpoint; vectors and other
// small tensors are converted to fp32 once.
#pragma once

#include <optional>
#include <vector>

#include "model/checkpoint.h"
#include "model/shape.h"
#include "ops/linear/matrix.h"
#include "quant/nvfp4.h"

namespace tandem::model {

using ops::Matrix;
using Vector = std::vector<float>;

struct MhcWeights {  // one site (spec/model.md 2.3)
  Matrix fn;         // [(2+n)·n, n·hidden]
  Vector base;       // [(2+n)·n]
  Vector scale;      // [3]
};

struct KdaWeights {               // spec/model.md 3; P = heads·dim
  Matrix q_proj, k_proj, v_proj;  // [P, hidden]
  Vector conv;                    // [3·P, kernel], channels q|k|v
  Matrix f_a_proj, g_a_proj;      // [dim, hidden]
  Matrix f_b_proj, g_b_proj;      // [P, dim]
  Matrix b_proj;                  // [heads, hidden]
  Vector a_log;                   // [heads]
  Vector dt_bias;                 // [P]
  Vector o_norm;                  // [dim]
  Matrix o_proj;                  // [hidden, P], leaves by heads
};

struct IndexerWeights {               // spec/model.md 4.4, 4.5
  Matrix wq_b;                        // [index heads·dim, q_lora_rank]
  Matrix wk;                          // [dim, hidden]
  Matrix weights_proj;                // [index heads, hidden]
  Matrix compress_gate;               // [dim, hidden]
  Vector compress_ape;                // [kpool, dim]
  Vector k_norm_weight, k_norm_bias;  // [dim]
};

struct DsaWeights {       // spec/model.md 4
  Matrix q_a_proj;        // [q_lora_rank, hidden]
  Vector q_a_layernorm;   // [q_lora_rank]
  Matrix q_b_proj;        // [heads·qk_nope_head_dim, q_lora_rank]
  Matrix kv_a_proj;       // [kv_lora_rank, hidden] (kv_a_proj_with_mqa)
  Vector kv_a_layernorm;  // [kv_lora_rank]
  Matrix kv_b_proj;       // [heads·(qk_nope_head_dim + v_head_dim), kv_lora_rank], key rows of a head first
  Matrix o_proj;          // [hidden, heads·v_head_dim], leaves by heads
  IndexerWeights indexer;
};

struct MlpWeights {  // gate, up [width, hidden]; down [hidden, width], leaves by 128-wide blocks of width
  Matrix gate_proj, up_proj, down_proj;
};

struct MoeWeights {
  Matrix gate;                      // router [experts, hidden]
  Vector e_score_correction_bias;   // [experts]
  std::vector<MlpWeights> experts;  // down_proj of a routed expert is whole on one rank: a single leaf
  MlpWeights shared;                // width n_shared_experts·moe_intermediate_size
};

struct LayerWeights {
  Vector input_layernorm, post_attention_layernorm;  // [hidden]
  std::optional<MhcWeights> hc_attn, hc_ffn;         // absent in the MTP layer
  std::optional<KdaWeights> kda;                     // exactly one of kda and dsa
  std::optional<DsaWeights> dsa;
  std::optional<MlpWeights> mlp;  // exactly one of mlp and moe
  std::optional<MoeWeights> moe;
};

struct MtpWeights {         // spec/model.md 6, stored as layer num_hidden_layers
  Vector enorm, hnorm;      // [hidden]
  Matrix eh_proj;           // [hidden, 2·hidden], embedding half first
  LayerWeights layer;       // DSA + MoE without mHC
  Vector shared_head_norm;  // [hidden]
};

struct TextWeights {
  Matrix embed_tokens;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  Vector norm;     // [hidden]
  Matrix lm_head;  // [vocab, hidden]
  std::optional<MtpWeights> mtp;
};

// How what a checkpoint does not say is read.
struct WeightOptions {
  quant::NibbleOrder nibble_order = quant::NibbleOrder::low_first;  // of NVFP4
};

// Finds every tensor that `shape` asks for under its hub name or its transformers name (spec/model.md 8.1, 8.4), checks
// shape and dtype, and sets the leaf borders. The result points into `checkpoint`. Throws Error(bad_file) naming the
// first tensor that is missing or wrong. A checkpoint without any MTP tensor loads with mtp empty.
TextWeights load_text_weights(const Checkpoint& checkpoint, const Shape& shape, WeightOptions options = {});

}  // namespace tandem::model
