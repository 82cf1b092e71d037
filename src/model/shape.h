// The dimensions and constants of a glm5_next text model, read from config.json and checked (spec/model.md 1.1).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::model {

enum class AttentionKind {
  kda,
  dsa
};  // layer_types: linear_attention, deepseek_sparse_attention (alias full_attention)
enum class FeedForwardKind { dense, moe };  // mlp_layer_types: dense, sparse

struct Shape {
  // text_config, names as in config.json
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_nextn_predict_layers = 0;  // 0 or 1 MTP layers, stored as layer num_hidden_layers
  int64_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-5f;
  int64_t intermediate_size = 0;
  int64_t moe_intermediate_size = 0;
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t n_shared_experts = 0;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1.0f;
  float swiglu_limit = 0.0f;
  int64_t num_attention_heads = 0;
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t v_head_dim = 0;
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  int64_t index_kpool = 0;
  int64_t hc_mult = 0;
  int64_t hc_sinkhorn_iters = 0;
  float hc_eps = 1e-6f;
  int64_t kda_num_heads = 0;           // linear_attn_config.num_heads
  int64_t kda_head_dim = 0;            // linear_attn_config.head_dim
  int64_t short_conv_kernel_size = 0;  // linear_attn_config.short_conv_kernel_size
  float gate_lower_bound = -5.0f;      // linear_attn_config.gate_lower_bound
  bool index_share_for_mtp_iteration = true;
  std::vector<AttentionKind> layer_types;        // [num_hidden_layers]
  std::vector<FeedForwardKind> mlp_layer_types;  // [num_hidden_layers]
  std::vector<int32_t> eos_token_ids;
  int32_t pad_token_id = 0;
  int32_t image_token_id = -1;
  int32_t video_token_id = -1;
  std::string model_type;  // "glm5_next"

  // Derived widths.
  int64_t kda_width() const { return kda_num_heads * kda_head_dim; }
  int64_t mhc_rows() const { return (2 + hc_mult) * hc_mult; }
  int64_t pool_budget() const { return index_topk / index_kpool; }
  int64_t max_selected() const { return index_topk + index_kpool - 1; }
  int64_t shared_width() const { return n_shared_experts * moe_intermediate_size; }
};

// Parses the text of a config.json. `where` names the file in errors. Throws Error(bad_file) naming the key, what was
// found and what was expected: wrong type, missing key, value outside the supported range, unknown model_type,
// inconsistent lists.
Shape parse_shape(std::string_view config_json, const std::string& where = "config.json");

// Reads <folder>/config.json (or `path` itself if it is a file).
Shape read_shape(const std::filesystem::path& path);

}  // namespace tandem::model
