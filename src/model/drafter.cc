// A drafter's config.json → DrafterShape, and its parameter counts. Every key that changes the arithmetic is read and
// checked; one that asks for something else is refused by name (spec/speculation.md 1.1 and trap 35).
#include "model/drafter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <system_error>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/config_ranges.h"
#include "model/json_reader.h"

namespace tandem::model {
namespace {

void only(const JsonObject& config, const char* key, bool value, const char* why) {
  if (config.optional_boolean(key).value_or(value) != value) config.refuse(key, fmt::format("{} ({})", value, why));
}

void only(const JsonObject& config, const char* key, const char* value) {
  if (config.optional_text(key).value_or(value) != value) config.refuse(key, fmt::format("\"{}\"", value));
}

void absent(const JsonObject& config, const char* key, const char* why) {
  if (config.has(key)) config.refuse(key, fmt::format("no such key ({})", why));
}

void check_kind(const JsonObject& config) {
  if (config.texts("architectures") != std::vector<std::string>{"DFlash2DraftModel"})
    config.refuse("architectures", R"(["DFlash2DraftModel"])");
  if (config.text("model_type") != "qwen3") config.refuse("model_type", "\"qwen3\"");
  only(config, "hidden_act", "silu");
  only(config, "attention_bias", false, "projections have no bias");
  only(config, "is_causal", false, "rows of a block see each other in both directions");
  only(config, "tie_word_embeddings", false, "embedding and head are the target's");
  only(config, "use_sliding_window", true, "history is seen through a window");
  absent(config, "draft_vocab_size", "the vocabulary is the target's");
  absent(config, "rope_scaling", "positions are not scaled");
  config.optional_text("dtype");                // every stored tensor says its own type
  config.optional_number("attention_dropout");  // the rest is of training or repeats what other keys say
  config.optional_number("initializer_range");
  config.optional_boolean("use_cache");
  config.optional_integer("max_window_layers", any_integer);
  config.optional_integer("max_position_embeddings", any_integer);
  config.optional_integer("bos_token_id", any_integer);
  config.optional_integer("pad_token_id", any_integer);
}

void read_sizes(const JsonObject& config, DrafterShape& shape) {
  shape.vocab_size = config.integer("vocab_size", vocabulary_range);
  shape.hidden_size = config.integer("hidden_size", width_range);
  shape.intermediate_size = config.integer("intermediate_size", wide_range);
  shape.num_hidden_layers = config.integer("num_hidden_layers", {1, 256});
  shape.num_target_layers = config.integer("num_target_layers", {1, 256});
  shape.num_attention_heads = config.integer("num_attention_heads", {1, 1024});
  shape.num_key_value_heads = config.integer("num_key_value_heads", {1, 1024});
  if (shape.num_attention_heads % shape.num_key_value_heads != 0)
    config.refuse("num_key_value_heads",
                  fmt::format("a divisor of num_attention_heads, {}", shape.num_attention_heads));
  shape.head_dim = config.integer("head_dim", {2, 4096});
  if (shape.head_dim % 2 != 0) config.refuse("head_dim", "an even number (rotary embedding turns halves)");
  shape.sliding_window = config.integer("sliding_window", {2, 1 << 20});
  const double eps = config.number("rms_norm_eps");
  shape.rms_norm_eps = static_cast<float>(eps);
  if (!(shape.rms_norm_eps > 0.0f) || !(eps <= 1.0)) config.refuse("rms_norm_eps", "a number above 0, at most 1");
}

void read_layers(const JsonObject& config, DrafterShape& shape) {
  const std::vector<std::string> types = config.texts("layer_types");
  if (std::ssize(types) != shape.num_hidden_layers)
    config.refuse("layer_types", fmt::format("{} entries, one for every layer", shape.num_hidden_layers));
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "sliding_attention")
      config.refuse(fmt::format("layer_types[{}]", i), "\"sliding_attention\"", "found \"" + printable(types[i]) + '"');
  }
  const JsonObject rope = config.object("rope_parameters");
  only(rope, "rope_type", "default");
  shape.rope_theta = rope.number("rope_theta");
  if (!(shape.rope_theta > 1.0) || !(shape.rope_theta <= 1e12))
    rope.refuse("rope_theta", "a number above 1, at most 1e12");
}

void read_block(const JsonObject& block, DrafterShape& shape) {
  shape.block_size = block.integer("block_size", {2, 16});
  if (block.integer("conv_kernel_size", any_integer) != DrafterShape::conv_taps)
    block.refuse("conv_kernel_size", fmt::format("{}", DrafterShape::conv_taps));
  shape.conv_group_size = block.integer("conv_group_size", width_range);
  if (shape.hidden_size % shape.conv_group_size != 0)
    block.refuse("conv_group_size", fmt::format("a divisor of hidden_size, {}", shape.hidden_size));
  shape.selector_rank = block.integer("selector_rank", width_range);
  shape.selector_top_k =
      block.integer("selector_top_k", {1, std::min(DrafterShape::most_candidates, shape.vocab_size)});
  shape.mask_token_id = static_cast<int32_t>(block.integer("mask_token_id", {0, shape.vocab_size - 1}));
  shape.target_layer_ids = block.integers("target_layer_ids", {0, shape.num_target_layers - 1});
  if (shape.target_layer_ids.empty()) block.refuse("target_layer_ids", "at least one layer");
  for (size_t i = 1; i < shape.target_layer_ids.size(); ++i) {
    if (shape.target_layer_ids[i] <= shape.target_layer_ids[i - 1])
      block.refuse("target_layer_ids", "ascending layers, each once");
  }
  only(block, "sample_from_anchor", false, "the first row of a block proposes nothing");
  absent(block, "sliding_window_non_causal", "history is seen backward only");
  absent(block, "dflashv2_selector", "the selector's tensors have the published names");
}

// q, k, v, o and the MLP of one layer, of one of `ranks` ranks.
int64_t shared_of_layer(const DrafterShape& d, int64_t ranks) {
  const auto half = [ranks](int64_t units) { return (units + ranks - 1) / ranks; };
  const int64_t heads = half(d.num_attention_heads), kv_heads = half(d.num_key_value_heads);
  return d.hidden_size * (2 * heads * d.head_dim + 2 * kv_heads * d.head_dim + 3 * half(d.intermediate_size));
}

// Norms and the two convolutions of one layer.
int64_t whole_of_layer(const DrafterShape& d) {
  constexpr int64_t kernels = 2 * DrafterShape::conv_taps;  // two sides
  const int64_t convolution = kernels * d.hidden_size + kernels * d.groups() * d.hidden_size;
  return 2 * d.hidden_size + 2 * d.head_dim + 2 * convolution;
}

int64_t outside_layers(const DrafterShape& d) {
  const int64_t fc = d.hidden_size * d.taps() * d.hidden_size, norms = 2 * d.hidden_size;
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

DrafterShape parse_drafter_shape(std::string_view config_json, const std::string& where) {
  const JsonDocument document(config_json, where);
  const JsonObject config = document.root();
  DrafterShape shape;
  check_kind(config);
  read_sizes(config, shape);
  read_layers(config, shape);
  read_block(config.object("dflash_config"), shape);
  return shape;
}

DrafterShape read_drafter_shape(const std::filesystem::path& path) {
  std::error_code ignored;  // opening the file gives the better message
  const std::filesystem::path file = std::filesystem::is_directory(path, ignored) ? path / "config.json" : path;
  return parse_drafter_shape(MappedFile::open(file).text(), file.string());
}

void check_drafter_fits(const DrafterShape& drafter, const Shape& target, const std::string& where) {
  const auto refuse = [&where](const char* key, const std::string& found, const std::string& expected) {
    throw Error(ErrorCode::bad_file, where + ": " + key, found, expected);
  };
  const auto equal = [&](const char* key, int64_t found, int64_t expected) {
    if (found != expected) refuse(key, fmt::format("{}", found), fmt::format("{}, the target model's", expected));
  };
  equal("hidden_size", drafter.hidden_size, target.hidden_size);
  equal("vocab_size", drafter.vocab_size, target.vocab_size);
  for (const int64_t layer : drafter.target_layer_ids) {
    if (layer < 0 || layer >= target.num_hidden_layers)
      refuse("dflash_config.target_layer_ids", fmt::format("{}", fmt::join(drafter.target_layer_ids, ", ")),
             fmt::format("layers below {}, the target model's number", target.num_hidden_layers));
  }
  equal("num_target_layers", drafter.num_target_layers, target.num_hidden_layers);
  if (drafter.mask_token_id < 0 || drafter.mask_token_id >= target.vocab_size)
    refuse("dflash_config.mask_token_id", fmt::format("{}", drafter.mask_token_id),
           fmt::format("a token id below {}, the target model's vocabulary", target.vocab_size));
}

}  // namespace tandem::model
