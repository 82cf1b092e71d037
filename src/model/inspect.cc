// Builds the report of `tandem inspect` and prints it for people.
#include "model/inspect.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

namespace tandem::model {
namespace fs = std::filesystem;
namespace {

constexpr size_t longest_list = 20;  // names printed of a long list

using Output = std::back_insert_iterator<std::string>;

// 1234567 → "1,234,567".
std::string grouped(int64_t number) { return fmt::format("{}", fmt::group_digits(number)); }

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }
double mib(int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }

void print_shape(Output out, const Shape& s) {
  fmt::format_to(out, "shape ({})\n", s.model_type);
  fmt::format_to(out, "  hidden {}, vocabulary {}, layers {}, MTP layers {}, context {}\n", s.hidden_size, s.vocab_size,
                 s.num_hidden_layers, s.num_nextn_predict_layers, grouped(s.max_position_embeddings));
  fmt::format_to(out, "  KDA      {} heads x {}, convolution {}, decay bound {}\n", s.kda_num_heads, s.kda_head_dim,
                 s.short_conv_kernel_size, s.gate_lower_bound);
  fmt::format_to(out, "  MLA      {} heads x ({} key, {} value), ranks {} query, {} latent\n", s.num_attention_heads,
                 s.qk_nope_head_dim, s.v_head_dim, s.q_lora_rank, s.kv_lora_rank);
  fmt::format_to(out, "  indexer  {} heads x {}, {} tokens in pools of {}: all attend up to a context of {}\n",
                 s.index_n_heads, s.index_head_dim, s.index_topk, s.index_kpool, s.max_selected());
  fmt::format_to(out, "  MLP      dense {}; {} experts x {}, top {}, scale {}; {} shared; limit {}\n",
                 s.intermediate_size, s.n_routed_experts, s.moe_intermediate_size, s.num_experts_per_tok,
                 s.routed_scaling_factor, s.n_shared_experts, s.swiglu_limit);
  fmt::format_to(out, "  mHC      {} streams, {} Sinkhorn steps\n", s.hc_mult, s.hc_sinkhorn_iters);
  fmt::format_to(out, "  stop ids {}\n", fmt::join(s.eos_token_ids, ", "));
}

// "0-2, 4-6": runs of consecutive numbers.
std::string ranges(const std::vector<int64_t>& numbers) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    parts.push_back(end - i == 1 ? std::to_string(numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[end - 1]));
    i = end;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

void print_schedule(Output out, const Shape& shape) {
  std::map<std::pair<AttentionKind, FeedForwardKind>, std::vector<int64_t>> kinds;
  for (size_t i = 0; i < shape.layer_types.size(); ++i) {
    kinds[{shape.layer_types[i], shape.mlp_layer_types[i]}].push_back(static_cast<int64_t>(i));
  }
  fmt::format_to(out, "layer schedule\n");
  for (const auto& [kind, layers] : kinds) {
    fmt::format_to(out, "  {} + {:<5}  {:>3}  ({})\n", kind.first == AttentionKind::kda ? "KDA" : "DSA",
                   kind.second == FeedForwardKind::dense ? "dense" : "MoE", layers.size(), ranges(layers));
  }
  if (shape.num_nextn_predict_layers == 1) {
    fmt::format_to(out, "  DSA + MoE      1  ({}, MTP, without mHC)\n", shape.num_hidden_layers);
  }
}

void print_rows(Output out, const std::vector<ParameterRow>& rows) {
  for (const ParameterRow& row : rows) {
    fmt::format_to(out, "  {:<16} {:>15} x {:>6} {:>19}\n", component_name(row.component), grouped(row.per_unit),
                   row.units, grouped(row.total()));
  }
}

void print_parameters(Output out, const Inventory& inventory) {
  fmt::format_to(out, "parameters\n");
  print_rows(out, inventory.main_rows);
  fmt::format_to(out, "  {:<40} {:>19}\n", "text without MTP", grouped(inventory.main_parameters));
  if (!inventory.mtp.empty()) {
    fmt::format_to(out, "parameters of MTP\n");
    print_rows(out, inventory.mtp_rows);
    fmt::format_to(out, "  {:<40} {:>19}\n", "MTP", grouped(inventory.mtp_parameters));
    fmt::format_to(out, "  {:<40} {:>19}\n", "text with MTP",
                   grouped(inventory.main_parameters + inventory.mtp_parameters));
  }
  fmt::format_to(out, "  {:<40} {:>19}\n", "active for a token, head included", grouped(inventory.active_parameters));
}

void print_cache(Output out, const CacheBytes& cache, int64_t context) {
  fmt::format_to(out, "cache: bytes a token, and GiB for {} tokens\n", grouped(context));
  for (const CacheRow& row : cache.rows) {
    fmt::format_to(out, "  {:<42} {:>9} {:>8.2f} GiB", row.format, cache.bytes_per_token(row, false),
                   gib(cache.bytes_for(row, context, false)));
    if (cache.mtp_layers > 0) {
      fmt::format_to(out, "   with MTP {:>9} {:>8.2f} GiB", cache.bytes_per_token(row, true),
                     gib(cache.bytes_for(row, context, true)));
    }
    fmt::format_to(out, "\n");
  }
  fmt::format_to(out, "state of a sequence: KDA {:.1f} MiB, convolution {:.1f} MiB (bf16) or {:.1f} MiB (f32)\n",
                 mib(cache.kda_state_bytes), mib(cache.conv_bf16_bytes), mib(cache.conv_f32_bytes));
}

void print_names(Output out, const char* title, const std::vector<std::string>& names) {
  fmt::format_to(out, "  {} {}\n", title, names.size());
  for (size_t i = 0; i < std::min(names.size(), longest_list); ++i) fmt::format_to(out, "    {}\n", names[i]);
  if (names.size() > longest_list) fmt::format_to(out, "    ... and {} more\n", names.size() - longest_list);
}

void print_formats(Output out, const ModelReport& report) {
  fmt::format_to(out, "formats by component: weights, parameters, bytes, bits a parameter, bytes read for a token\n");
  double read = 0;
  for (const FormatRow& row : report.formats()) {
    const double of_token = bytes_per_token(row, report.shape);
    read += of_token;
    fmt::format_to(out, "  {:<20} {:<36} {:>7} {:>17} {:>17} {:>7.3f} {:>15}\n",
                   fmt::format("{}{}", row.mtp ? "mtp " : "", component_name(row.component)), row.format, row.weights,
                   grouped(row.parameters), grouped(row.bytes), row.bits(), grouped(std::llround(of_token)));
  }
  fmt::format_to(out, "  read for a token, head included {} bytes\n", grouped(std::llround(read)));
}

void print_weights(Output out, const ModelReport& report) {
  if (!report.weights) {
    fmt::format_to(out, "weights: none here{}{}\n",
                   report.stated_format.empty() ? "" : "; their format as config.json says: ", report.stated_format);
    if (report.stated.empty()) return;
    return print_formats(out, report);
  }
  const Comparison& weights = *report.weights;
  fmt::format_to(out, "weights: {} bytes, {} tensors of the text model, {} of the vision tower ({} parameters)\n",
                 grouped(weights.bytes), weights.text_tensors, weights.vision_tensors,
                 grouped(weights.vision_parameters));
  for (const DTypeCount& count : weights.dtypes) {
    fmt::format_to(out, "  {:<8} {:>7} tensors {:>19} bytes\n", dtype_name(count.dtype), count.tensors,
                   grouped(count.bytes));
  }
  print_formats(out, report);
  if (weights.rotations.layers > 0) {
    fmt::format_to(out, "  EXL3 experts share suh of gate and up in {} of {} layers, svh of down in {}\n",
                   weights.rotations.inputs, weights.rotations.layers, weights.rotations.outputs);
  }
  if (report.shape.num_nextn_predict_layers == 1 && !weights.has_mtp) fmt::format_to(out, "  MTP layer not stored\n");
  print_names(out, "missing", weights.missing);
  print_names(out, "wrong  ", weights.wrong);
  print_names(out, "unknown", weights.unknown);
  if (!weights.warnings.empty()) print_names(out, "odd    ", weights.warnings);
}

}  // namespace

ModelReport inspect(const fs::path& path, WeightOptions options) {
  ModelReport report;
  report.path = path.string();
  report.shape = read_shape(path);
  report.inventory = make_inventory(report.shape);
  report.cache = cache_bytes(report.shape);
  if (has_weights(path)) report.weights = compare(Checkpoint::open(path), report.shape, options);
  return report;
}

std::string report_text(const ModelReport& report) {
  std::string text = report.path + "\n\n";
  const Output out(text);
  print_shape(out, report.shape);
  text += '\n';
  print_schedule(out, report.shape);
  text += '\n';
  print_parameters(out, report.inventory);
  text += '\n';
  print_cache(out, report.cache, report.shape.max_position_embeddings);
  text += '\n';
  print_weights(out, report);
  if (report.floor) text += '\n' + floor_text(*report.floor, report.shape);
  return text;
}

std::string inspect_report(const fs::path& path, bool json) {
  const ModelReport report = inspect(path);
  return json ? report_json(report) : report_text(report);
}

}  // namespace tandem::model
