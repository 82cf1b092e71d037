// What stands beside the text model in a plan: a DFlash2 drafter (spec/speculation.md 1) and the vision tower
// (spec/frontend.md A).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "model/shape.h"

namespace tandem::engine {

// The dimensions of a DFlash2 drafter; the defaults are those of the published one.
struct DrafterShape {
  int64_t vocab_size = 154880, hidden_size = 4096, intermediate_size = 12288, num_hidden_layers = 5;
  int64_t num_attention_heads = 32, num_key_value_heads = 8, head_dim = 128, sliding_window = 2048;
  int64_t block_size = 8, conv_kernel_size = 2, conv_group_size = 16, selector_rank = 256, taps = 5;

  int64_t parameters() const;
  // Of one of `ranks` ranks, the first: attention and MLP are halved, the rest is on each.
  int64_t parameters_of_rank(int ranks) const;
  // Keys and values of one context row over all layers, bf16: 20 KiB for the published one.
  int64_t row_bytes(int ranks) const;
  int64_t kept_rows() const { return sliding_window - 1; }  // that a kept state must hold
  int64_t ring_rows() const { return kept_rows() + block_size; }
};

// config.json of a drafter's folder. Throws Error(bad_file) naming the key.
DrafterShape parse_drafter(std::string_view config_json, const std::string& where);

// Parameters of the vision tower that a config.json describes (vision_config); none without that key. Throws
// Error(bad_file).
std::optional<int64_t> vision_parameters(std::string_view config_json, const std::string& where);

// Memory that the published runtime gives the vision tower to work in (spec/runtime.md 0).
inline constexpr int64_t vision_workspace_bytes = int64_t{768} << 20;

}  // namespace tandem::engine
