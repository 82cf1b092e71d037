// The DFlash2 drafter's dimensions, weights and whether they fit a target model (spec/speculation.md 1.1, 1.2).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint.h"
#include "model/shape.h"
#include "ops/linear/matrix.h"

namespace tandem::model {

// Names as in config.json; the defaults are those of the published drafter.
struct DrafterShape {
  // Rows that a stream may hold beyond those that are kept: drafts being verified.
  static constexpr int64_t window_rows = 16;
  static constexpr int64_t most_candidates = 16;  // selector_top_k at most
  static constexpr int64_t conv_taps = 2;         // conv_kernel_size

  int64_t vocab_size = 154880, hidden_size = 4096, intermediate_size = 12288, num_hidden_layers = 5;
  int64_t num_attention_heads = 32, num_key_value_heads = 8, head_dim = 128;
  int64_t num_target_layers = 45;
  int64_t sliding_window = 2048;
  float rms_norm_eps = 1e-5f;
  double rope_theta = 10000.0;  // rope_parameters.rope_theta
  // dflash_config
  int64_t block_size = 8, conv_group_size = 16, selector_rank = 256, selector_top_k = 16;
  int32_t mask_token_id = 154856;
  std::vector<int64_t> target_layer_ids = {5, 14, 24, 33, 42};  // ascending

  int64_t taps() const { return static_cast<int64_t>(target_layer_ids.size()); }
  int64_t query_width() const { return num_attention_heads * head_dim; }
  int64_t key_width() const { return num_key_value_heads * head_dim; }
  int64_t groups() const { return hidden_size / conv_group_size; }
  int64_t draft_rows() const { return block_size - 1; }

  int64_t parameters() const;
  // Of one of `ranks` ranks that share the heads and the MLP, the first; the rest is on each. (Ranks of this program
  // that run on CPUs have the whole drafter each.)
  int64_t parameters_of_rank(int ranks) const;
  // Keys and values of one context row over all layers, bf16, of such a rank: 20 KiB for the published one.
  int64_t row_bytes(int ranks) const;
  int64_t kept_rows() const { return sliding_window - 1; }  // that a kept state must hold
  int64_t ring_rows() const { return kept_rows() + window_rows; }

  bool operator==(const DrafterShape&) const = default;
};

// The text of a drafter's config.json. `where` names the file in errors. Throws Error(bad_file) naming the key: wrong
// type, missing, out of range, or asking for arithmetic that this program does not have.
DrafterShape parse_drafter_shape(std::string_view config_json, const std::string& where = "config.json");
// <folder>/config.json, or `path` itself if it is a file.
DrafterShape read_drafter_shape(const std::filesystem::path& path);

// Throws Error(bad_file) naming the key, what the drafter has and what the target needs: hidden size, vocabulary,
// number of layers, tap layers, mask token. `where` names the drafter's config.json.
void check_drafter_fits(const DrafterShape& drafter, const Shape& target, const std::string& where = "config.json");

struct DrafterConvolution {
  std::vector<float> base_kernel;  // [2 sides, 2 taps, hidden]: side 0 before the sub-layer, 1 after it
  ops::Matrix kernel_projection;   // [2 sides·2 taps·groups, hidden]
};

struct DrafterLayer {
  std::vector<float> input_layernorm, post_attention_layernorm;  // [hidden]
  std::vector<float> q_norm, k_norm;                             // [head_dim]
  ops::Matrix q_proj, k_proj, v_proj, o_proj;                    // [query or key width, hidden]; o the other way round
  ops::Matrix gate_proj, up_proj, down_proj;                     // [intermediate, hidden]; down the other way round
  DrafterConvolution attention_conv, mlp_conv;
};

// Matrices are views into the checkpoint.
struct DrafterWeights {
  std::vector<DrafterLayer> layers;
  ops::Matrix fc;                        // [hidden, taps·hidden]
  std::vector<float> hidden_norm, norm;  // [hidden]
  ops::Matrix hidden_projection;         // [selector_rank, hidden]
  ops::Matrix predecessor_codebook;      // [vocab, selector_rank]
  ops::Matrix successor_codebook;        // [vocab, selector_rank]
};

// 15 tensors a layer and 6 more, each by name and shape, BF16 or F32. Throws Error(bad_file) naming the first tensor
// that is missing, wrong or unknown (a drafter with an embedding or a head of its own is another kind).
DrafterWeights load_drafter_weights(const Checkpoint& checkpoint, const DrafterShape& shape);

}  // namespace tandem::model
