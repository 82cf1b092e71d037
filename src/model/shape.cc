// config.json → Shape. Every key that changes the arithmetic is read from the file and checked: a key that asks for
// something this program does not compute is refused here, with its name, instead of giving wrong text later.
#include "model/shape.h"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>

#include "base/mapped_file.h"
#include "model/config_ranges.h"
#include "model/json_reader.h"
#include "model/quantization_config.h"

namespace tandem::model {
namespace {

constexpr IntegerRange head_count{1, 1024};
constexpr IntegerRange head_size{1, 4096};
constexpr IntegerRange layer_count{1, 256};
constexpr IntegerRange expert_count{2, 1024};

// A float key: finite and within (above, at_most]; checked after rounding to fp32, in which it is used.
float positive(const JsonObject& config, const char* key, double at_most) {
  const double value = config.number(key);
  const auto rounded = static_cast<float>(value);
  if (!(rounded > 0.0f) || !(value <= at_most))
    config.refuse(key, fmt::format("a number above 0, at most {}", at_most));
  return rounded;
}

void require_true(const JsonObject& config, const char* key, const char* why) {
  if (!config.optional_boolean(key).value_or(true)) config.refuse(key, fmt::format("true ({})", why));
}

void require_false(const JsonObject& config, const char* key, const char* why) {
  if (config.optional_boolean(key).value_or(false)) config.refuse(key, fmt::format("false ({})", why));
}

void require_text(const JsonObject& config, const char* key, const char* only) {
  if (config.optional_text(key).value_or(only) != only) config.refuse(key, fmt::format("\"{}\"", only));
}

void require_equal(const JsonObject& config, const char* key, int64_t only, const std::string& meaning) {
  if (config.optional_integer(key, any_integer).value_or(only) != only) config.refuse(key, meaning);
}

void read_sizes(const JsonObject& config, Shape& shape) {
  shape.vocab_size = config.integer("vocab_size", vocabulary_range);
  shape.hidden_size = config.integer("hidden_size", width_range);
  shape.num_hidden_layers = config.integer("num_hidden_layers", layer_count);
  shape.num_nextn_predict_layers = config.optional_integer("num_nextn_predict_layers", {0, 1}).value_or(0);
  shape.max_position_embeddings = config.integer("max_position_embeddings", {1, INT32_MAX});
  shape.rms_norm_eps = positive(config, "rms_norm_eps", 1.0);
  require_text(config, "hidden_act", "silu");
  require_false(config, "tie_word_embeddings", "the output head has weights of its own");
  require_false(config, "attention_bias", "linear layers of this model have no bias");
  config.optional_number("attention_dropout");  // used in training only
  config.optional_text("dtype");                // every stored tensor says its own type
}

void read_feed_forward(const JsonObject& config, Shape& shape) {
  shape.intermediate_size = config.integer("intermediate_size", wide_range);
  shape.moe_intermediate_size = config.integer("moe_intermediate_size", width_range);
  shape.n_routed_experts = config.integer("n_routed_experts", expert_count);
  shape.num_experts_per_tok = config.integer("num_experts_per_tok", {1, shape.n_routed_experts});
  shape.n_shared_experts = config.integer("n_shared_experts", {1, 16});
  shape.norm_topk_prob = config.boolean("norm_topk_prob");
  shape.routed_scaling_factor = positive(config, "routed_scaling_factor", 1e4);
  shape.swiglu_limit = positive(config, "swiglu_limit", 1e6);
  require_equal(config, "n_group", 1, "1 (group-limited routing is not part of this model)");
  require_equal(config, "topk_group", 1, "1 (group-limited routing is not part of this model)");
  require_text(config, "scoring_func", "sigmoid");
  require_text(config, "topk_method", "noaux_tc");
  require_text(config, "moe_router_dtype", "float32");
}

void read_attention(const JsonObject& config, Shape& shape) {
  shape.num_attention_heads = config.integer("num_attention_heads", head_count);
  require_equal(config, "num_key_value_heads", shape.num_attention_heads,
                fmt::format("{}, the same as num_attention_heads", shape.num_attention_heads));
  shape.q_lora_rank = config.integer("q_lora_rank", width_range);
  shape.kv_lora_rank = config.integer("kv_lora_rank", width_range);
  shape.qk_nope_head_dim = config.integer("qk_nope_head_dim", head_size);
  if (config.integer("qk_rope_head_dim", any_integer) != 0) {
    config.refuse("qk_rope_head_dim", "0 (this model has no rotary position embedding)");
  }
  require_equal(config, "qk_head_dim", shape.qk_nope_head_dim,
                fmt::format("{}, the same as qk_nope_head_dim", shape.qk_nope_head_dim));
  shape.v_head_dim = config.integer("v_head_dim", head_size);
  config.optional_integer("head_dim", any_integer);  // the rope width by convention, never the width of a head
  require_true(config, "mla_use_nope", "this model has no rotary position embedding");
}

void read_indexer(const JsonObject& config, Shape& shape) {
  shape.index_n_heads = config.integer("index_n_heads", head_count);
  shape.index_head_dim = config.integer("index_head_dim", head_size);
  shape.index_topk = config.integer("index_topk", {1, 1 << 20});
  shape.index_kpool = config.integer("index_kpool", {1, 256});
  if (shape.index_topk % shape.index_kpool != 0) {
    config.refuse("index_topk", fmt::format("a multiple of index_kpool, {}", shape.index_kpool));
  }
  require_true(config, "index_kpool_compress", "pools are formed by the learned gate");
  require_true(config, "index_kpool_always_select_tail", "the unfinished pool is always attended to");
  config.optional_boolean("indexer_rope_interleave");  // without meaning: the indexer has no rope
  shape.index_share_for_mtp_iteration = config.optional_boolean("index_share_for_mtp_iteration").value_or(true);
}

void read_mhc(const JsonObject& config, Shape& shape) {
  require_true(config, "mhc", "the residual streams are mixed by mHC");
  shape.hc_mult = config.integer("hc_mult", {1, 16});
  shape.hc_sinkhorn_iters = config.integer("hc_sinkhorn_iters", {1, 1000});
  shape.hc_eps = positive(config, "hc_eps", 1.0);
}

void read_kda(const JsonObject& linear, Shape& shape) {
  shape.kda_num_heads = linear.integer("num_heads", head_count);
  shape.kda_head_dim = linear.integer("head_dim", head_size);
  shape.short_conv_kernel_size = linear.integer("short_conv_kernel_size", {2, 16});
  // Without a bound the model would have another gate (softplus), so the key may be neither missing nor zero.
  const auto bound = static_cast<float>(linear.number("gate_lower_bound"));
  if (!(bound < 0.0f) || !(bound >= -100.0f)) linear.refuse("gate_lower_bound", "a number below 0, at least -100");
  shape.gate_lower_bound = bound;
}

// The list under `key`, at least one entry a layer. Entries beyond (the MTP layer) are checked by the caller and
// dropped.
std::vector<std::string> layer_list(const JsonObject& config, const char* key, int64_t layers) {
  std::vector<std::string> list = config.texts(key);
  if (static_cast<int64_t>(list.size()) < layers) {
    config.refuse(key, fmt::format("at least {} entries, one for every layer", layers));
  }
  return list;
}

void read_schedule(const JsonObject& config, Shape& shape) {
  const int64_t layers = shape.num_hidden_layers;
  for (const std::string& kind : layer_list(config, "layer_types", layers)) {
    const bool dsa = kind == "deepseek_sparse_attention" || kind == "full_attention";
    if (!dsa && kind != "linear_attention") {
      config.refuse(fmt::format("layer_types[{}]", shape.layer_types.size()),
                    R"("linear_attention" or "deepseek_sparse_attention")", "found \"" + printable(kind) + '"');
    }
    shape.layer_types.push_back(dsa ? AttentionKind::dsa : AttentionKind::kda);
  }
  for (const std::string& kind : layer_list(config, "mlp_layer_types", layers)) {
    if (kind != "dense" && kind != "sparse") {
      config.refuse(fmt::format("mlp_layer_types[{}]", shape.mlp_layer_types.size()), R"("dense" or "sparse")",
                    "found \"" + printable(kind) + '"');
    }
    shape.mlp_layer_types.push_back(kind == "dense" ? FeedForwardKind::dense : FeedForwardKind::moe);
  }
  shape.layer_types.resize(static_cast<size_t>(layers));
  shape.mlp_layer_types.resize(static_cast<size_t>(layers));
  if (!config.has("indexer_types")) return;
  int64_t index = 0;
  for (const std::string& kind : layer_list(config, "indexer_types", layers)) {
    if (kind != "full") {
      config.refuse(fmt::format("indexer_types[{}]", index), "\"full\" (every layer selects for itself)",
                    "found \"" + printable(kind) + '"');
    }
    ++index;
  }
}

// kda_layers and full_attn_layers repeat layer_types as lists of 0-based indices. An index of the MTP layer is let
// pass.
void check_layer_indices(const JsonObject& linear, const char* key, AttentionKind kind, const Shape& shape) {
  if (!linear.has(key)) return;
  const int64_t layers = shape.num_hidden_layers;
  std::vector<int64_t> found = linear.integers(key, {0, layers + shape.num_nextn_predict_layers - 1});
  std::sort(found.begin(), found.end());
  if (!found.empty() && found.back() == layers) found.pop_back();
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < layers; ++i) {
    if (shape.layer_types[static_cast<size_t>(i)] == kind) expected.push_back(i);
  }
  if (found != expected) linear.refuse(key, "the same layers as layer_types (counted from 0)", "other layers listed");
}

void cross_check_schedule(const JsonObject& config, const JsonObject& linear, const Shape& shape) {
  check_layer_indices(linear, "kda_layers", AttentionKind::kda, shape);
  check_layer_indices(linear, "full_attn_layers", AttentionKind::dsa, shape);
  const auto dense = config.optional_integer("first_k_dense_replace", {0, shape.num_hidden_layers});
  if (!dense) return;
  for (int64_t i = 0; i < shape.num_hidden_layers; ++i) {
    const bool is_dense = shape.mlp_layer_types[static_cast<size_t>(i)] == FeedForwardKind::dense;
    if (is_dense != (i < *dense)) {
      config.refuse("first_k_dense_replace",
                    fmt::format("agreement with mlp_layer_types, which differs at layer {}", i));
    }
  }
}

void read_token_ids(const JsonObject& root, const JsonObject& config, Shape& shape) {
  const IntegerRange id{0, shape.vocab_size - 1};
  if (config.is_array("eos_token_id")) {
    for (const int64_t token : config.integers("eos_token_id", id)) {
      shape.eos_token_ids.push_back(static_cast<int32_t>(token));
    }
    if (shape.eos_token_ids.empty()) config.refuse("eos_token_id", "at least one token id");
  } else {
    shape.eos_token_ids.push_back(static_cast<int32_t>(config.integer("eos_token_id", id)));
  }
  const int64_t first_end = shape.eos_token_ids.front();
  shape.pad_token_id = static_cast<int32_t>(config.optional_integer("pad_token_id", id).value_or(first_end));
  shape.image_token_id = static_cast<int32_t>(root.optional_integer("image_token_id", id).value_or(-1));
  shape.video_token_id = static_cast<int32_t>(root.optional_integer("video_token_id", id).value_or(-1));
}

}  // namespace

Shape parse_shape(std::string_view config_json, const std::string& where) {
  const JsonDocument document(config_json, where);
  const JsonObject root = document.root();
  Shape shape;
  shape.model_type = root.text("model_type");
  if (shape.model_type != "glm5_next") root.refuse("model_type", "\"glm5_next\"");
  require_false(root, "tie_word_embeddings", "the output head has weights of its own");
  if (root.has("quantization_config")) check_quantization(root.object("quantization_config"), where);
  const JsonObject config = root.object("text_config");
  require_text(config, "model_type", "glm5_next_text");
  const JsonObject linear = config.object("linear_attn_config");
  read_sizes(config, shape);
  read_feed_forward(config, shape);
  read_attention(config, shape);
  read_indexer(config, shape);
  read_mhc(config, shape);
  read_kda(linear, shape);
  read_schedule(config, shape);
  cross_check_schedule(config, linear, shape);
  read_token_ids(root, config, shape);
  return shape;
}

Shape read_shape(const std::filesystem::path& path) {
  std::error_code ignored;  // opening the file gives the better message
  const std::filesystem::path file = std::filesystem::is_directory(path, ignored) ? path / "config.json" : path;
  return parse_shape(MappedFile::open(file).text(), file.string());
}

}  // namespace tandem::model
