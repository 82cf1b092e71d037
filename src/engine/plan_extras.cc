// Parameter counts from the tensor lists of spec/speculation.md 1.2 and spec/frontend.md A.2.
#include "engine/plan_extras.h"

#include "base/error.h"
#include "model/json_reader.h"

namespace tandem::engine {
namespace {

constexpr model::IntegerRange dimension{1, int64_t{1} << 24};

// q, k, v, o and the MLP of one layer, of one of `ranks` ranks.
int64_t shared_of_layer(const DrafterShape& d, int64_t ranks) {
  const auto half = [ranks](int64_t units) { return (units + ranks - 1) / ranks; };
  const int64_t heads = half(d.num_attention_heads), kv_heads = half(d.num_key_value_heads);
  return d.hidden_size * (2 * heads * d.head_dim + 2 * kv_heads * d.head_dim + 3 * half(d.intermediate_size));
}

// Norms and the two convolutions of one layer: two sides, `kernel` taps.
int64_t whole_of_layer(const DrafterShape& d) {
  const int64_t taps = 2 * d.conv_kernel_size;
  const int64_t convolution = taps * d.hidden_size + taps * (d.hidden_size / d.conv_group_size) * d.hidden_size;
  return 2 * d.hidden_size + 2 * d.head_dim + 2 * convolution;
}

int64_t outside_layers(const DrafterShape& d) {
  const int64_t fc = d.hidden_size * d.taps * d.hidden_size, norms = 2 * d.hidden_size;
  return fc + norms + d.selector_rank * d.hidden_size + 2 * d.vocab_size * d.selector_rank;
}

}  // namespace

int64_t DrafterShape::parameters_of_rank(int ranks) const {
  return num_hidden_layers * (shared_of_layer(*this, ranks) + whole_of_layer(*this)) + outside_layers(*this);
}

int64_t DrafterShape::parameters() const { return parameters_of_rank(1); }

int64_t DrafterShape::row_bytes(int ranks) const {
  return num_hidden_layers * 2 * ((num_key_value_heads + ranks - 1) / ranks) * head_dim * 2;
}

DrafterShape parse_drafter(std::string_view config_json, const std::string& where) {
  const model::JsonDocument document(config_json, where);
  const model::JsonObject root = document.root(), block = root.object("dflash_config");
  DrafterShape d;
  for (const auto& [key, value] : {std::pair{"vocab_size", &d.vocab_size},
                                   {"hidden_size", &d.hidden_size},
                                   {"intermediate_size", &d.intermediate_size},
                                   {"num_hidden_layers", &d.num_hidden_layers},
                                   {"num_attention_heads", &d.num_attention_heads},
                                   {"num_key_value_heads", &d.num_key_value_heads},
                                   {"head_dim", &d.head_dim},
                                   {"sliding_window", &d.sliding_window}}) {
    *value = root.integer(key, dimension);
  }
  for (const auto& [key, value] : {std::pair{"block_size", &d.block_size},
                                   {"conv_kernel_size", &d.conv_kernel_size},
                                   {"conv_group_size", &d.conv_group_size},
                                   {"selector_rank", &d.selector_rank}}) {
    *value = block.integer(key, dimension);
  }
  d.taps = std::ssize(block.integers("target_layer_ids", {0, dimension.most}));
  if (d.taps == 0) block.refuse("target_layer_ids", "at least one layer");
  return d;
}

std::optional<int64_t> vision_parameters(std::string_view config_json, const std::string& where) {
  const model::JsonDocument document(config_json, where);
  if (!document.root().has("vision_config")) return std::nullopt;
  const model::JsonObject vision = document.root().object("vision_config");
  const auto read = [&](const char* key) { return vision.integer(key, dimension); };
  const int64_t h = read("hidden_size"), mlp = read("intermediate_size"), out = read("out_hidden_size");
  const int64_t heads = read("num_heads"), patch = read("patch_size"), merge = read("spatial_merge_size");
  const int64_t projection = read("projection_intermediate_size");
  const int64_t patch_embed = h * read("in_channels") * read("temporal_patch_size") * patch * patch + h;
  const int64_t attention = 3 * h * h + 3 * h + 2 * (h / heads) + h * h + h;
  const int64_t block = 2 * h + attention + 2 * (mlp * h + mlp) + h * mlp + h;
  const int64_t downsample = out * h * merge * merge + out;
  const int64_t merger = out * out + 2 * out + 3 * projection * out;
  return patch_embed + read("depth") * block + h + downsample + merger;
}

}  // namespace tandem::engine
