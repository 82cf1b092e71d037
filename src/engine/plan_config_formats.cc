// quantization_config to a rule for every weight.
#include "engine/plan_config_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <regex>

#include "base/error.h"
#include "engine/plan_formats.h"
#include "model/json_reader.h"

namespace tandem::engine {
namespace {

using model::Component;
using model::JsonObject;
using model::WeightSpec;
using Kind = WeightCoding::Kind;

constexpr std::string_view weight_ending = ".weight";
constexpr const char* prefixes[] = {"model.language_model.", "model.", "language_model.model.", ""};

std::string module_of(const WeightSpec& spec) {
  std::string name = spec.name;
  if (name.ends_with(weight_ending)) name.resize(name.size() - weight_ending.size());
  return name;
}

// `pattern` with * and ? against the whole of `text`.
bool matches_wildcards(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

double bits_of(const JsonObject& config, const char* key) {
  const double bits = config.number(key);
  if (!(bits >= 1 && bits <= 16)) config.refuse(key, "a number from 1 to 16");
  return bits;
}

std::string exl3_name(const char* what, double bits) { return fmt::format("exl3:{}{}", bits, what); }

// Each layer's routed experts have the width that layer_bits gives, or else `bits`.
WeightFormat exl3_experts(const JsonObject& config, double bits) {
  std::map<int64_t, double> by_layer;
  if (config.has("layer_bits")) {
    const JsonObject layers = config.object("layer_bits");
    for (const std::string& key : layers.keys()) {
      const bool is_number = !key.empty() && key.size() < 6 && key.find_first_not_of("0123456789") == std::string::npos;
      if (!is_number) layers.refuse(key, "the number of a layer as key");
      by_layer[std::stoll(key)] = bits_of(layers, key.c_str());
    }
  }
  return {exl3_name(by_layer.empty() ? "" : ", widths by layer", bits), [=](const WeightSpec& spec, bool) {
            if (spec.component != Component::routed_experts) return WeightCoding{};
            const auto found = by_layer.find(spec.layer);
            return WeightCoding{Kind::exl3, found == by_layer.end() ? bits : found->second};
          }};
}

ModuleNames names_of(const JsonObject& config, const char* key, const std::string& where) {
  return {config.has(key) ? config.texts(key) : std::vector<std::string>(), where + ": " + key};
}

WeightFormat exl3_format(const JsonObject& config, const std::string& where) {
  const double bits = bits_of(config, "bits");
  if (bits > 8) config.refuse("bits", "a number from 1 to 8");
  const std::string scope = config.optional_text("scope").value_or("");
  if (scope.find("routed_experts") != std::string::npos || config.has("layer_bits")) return exl3_experts(config, bits);
  const double head = config.has("head_bits") ? bits_of(config, "head_bits") : bits;
  const double mtp = config.has("mtp_bits") ? bits_of(config, "mtp_bits") : bits;
  const bool has_list = config.has("modules_to_not_convert");
  const ModuleNames kept = names_of(config, "modules_to_not_convert", where);
  return {exl3_name(has_list ? ", linear layers that are not listed" : ", every linear layer", bits),
          [=](const WeightSpec& spec, bool is_mtp) {
            // kv_b_proj is absorbed into other products and stays plain (docs/formats.md).
            if (!is_linear(spec) || spec.shape[0] % 128 != 0 || spec.shape[1] % 128 != 0 ||
                spec.name.ends_with("kv_b_proj.weight") || kept.name(spec))
              return WeightCoding{};
            const double width = spec.component == Component::lm_head ? head : is_mtp ? mtp : bits;
            return width > 8 ? WeightCoding{} : WeightCoding{Kind::exl3, width};
          }};
}

WeightFormat fp8_format(const JsonObject& config, const std::string& where) {
  const WeightCoding fp8{Kind::fp8_blocks, 8};
  if (!config.has("modules_to_not_convert")) return parse_weight_format("fp8");
  return {"fp8", [fp8, kept = names_of(config, "modules_to_not_convert", where)](const WeightSpec& spec, bool) {
            return is_linear(spec) && !kept.name(spec) ? fp8 : WeightCoding{};
          }};
}

// What the `weights` of a group of compressed-tensors say.
WeightCoding coding_of_group(const JsonObject& group) {
  const JsonObject weights = group.object("weights");
  const int64_t bits = weights.integer("num_bits", {1, 16});
  if (weights.text("type") != "float") weights.refuse("type", "\"float\": FP8 blocks or NVFP4");
  if (bits == 4 && weights.integer("group_size", {1}) == 16) return {Kind::nvfp4, 4};
  if (bits != 8) weights.refuse("num_bits", "4 in groups of 16, or 8 in blocks");
  if (weights.integers("block_structure", {1}) != std::vector<int64_t>{128, 128})
    weights.refuse("block_structure", "[128, 128]");
  return {Kind::fp8_blocks, 8};
}

struct Group {
  WeightCoding coding;
  bool all_linear;
  ModuleNames targets;
};

WeightFormat compressed_format(const JsonObject& config, const std::string& where) {
  std::vector<Group> groups;
  const JsonObject given = config.object("config_groups");
  for (const std::string& key : given.keys()) {
    const JsonObject group = given.object(key);
    std::vector<std::string> targets = group.texts("targets");
    const bool all_linear = std::erase(targets, "Linear") > 0;
    groups.push_back({coding_of_group(group), all_linear, {targets, where + ": config_groups." + key + ".targets"}});
  }
  return {"compressed-tensors", [groups, ignored = names_of(config, "ignore", where)](const WeightSpec& spec, bool) {
            if (!is_linear(spec) || ignored.name(spec)) return WeightCoding{};
            for (const Group& group : groups)  // a module's own name says more than its class
              if (group.targets.name(spec)) return group.coding;
            for (const Group& group : groups)
              if (group.all_linear) return group.coding;
            return WeightCoding{};
          }};
}

WeightFormat mixed_modelopt(const JsonObject& config, const std::string& where) {
  std::vector<std::string> nvfp4, fp8;
  const JsonObject layers = config.object("quantized_layers");
  for (const std::string& name : layers.keys()) {
    const JsonObject layer = layers.object(name);
    const std::string algorithm = layer.text("quant_algo");
    if (algorithm != "NVFP4" && algorithm != "FP8_PB_WO") layer.refuse("quant_algo", "\"NVFP4\" or \"FP8_PB_WO\"");
    (algorithm == "NVFP4" ? nvfp4 : fp8).push_back(name);
  }
  const std::string place = where + ": quantized_layers";
  return {"modelopt, mixed",
          [four = ModuleNames(nvfp4, place), eight = ModuleNames(fp8, place)](const WeightSpec& spec, bool) {
            if (!is_linear(spec)) return WeightCoding{};
            if (four.name(spec)) return WeightCoding{Kind::nvfp4, 4};
            return eight.name(spec) ? WeightCoding{Kind::fp8_blocks, 8} : WeightCoding{};
          }};
}

WeightFormat modelopt_format(const JsonObject& config, const std::string& where) {
  const std::string algorithm = config.text("quant_algo");
  if (algorithm == "MIXED_PRECISION") return mixed_modelopt(config, where);
  if (algorithm != "NVFP4") config.refuse("quant_algo", "\"NVFP4\" or \"MIXED_PRECISION\"");
  const char* list = config.has("exclude_modules") ? "exclude_modules" : "ignore";
  return {"modelopt NVFP4", [kept = names_of(config, list, where)](const WeightSpec& spec, bool) {
            return is_linear(spec) && !kept.name(spec) ? WeightCoding{Kind::nvfp4, 4} : WeightCoding{};
          }};
}

}  // namespace

struct ModuleNames::Expression {
  std::regex regex;
};

bool is_linear(const WeightSpec& spec) {
  if (spec.shape.size() != 2) return false;
  switch (spec.component) {
    case Component::kda:
    case Component::mla:
    case Component::indexer:
    case Component::dense_mlp:
    case Component::shared_expert:
    case Component::routed_experts:
    case Component::mtp_eh_proj:
      return spec.name.ends_with("_proj.weight") || spec.name.ends_with("_proj_with_mqa.weight") ||
             spec.name.ends_with(".wq_b.weight") || spec.name.ends_with(".wk.weight");
    case Component::lm_head: return true;
    default: return false;
  }
}

ModuleNames::ModuleNames(const std::vector<std::string>& entries, const std::string& where) {
  constexpr std::string_view mark = "re:";
  constexpr size_t longest = 500;
  for (const std::string& entry : entries) {
    if (!entry.starts_with(mark)) {
      names_.push_back(entry);
      continue;
    }
    if (entry.size() > longest)
      throw Error(ErrorCode::bad_file, where, fmt::format("an expression of {} characters", entry.size()),
                  fmt::format("at most {}", longest));
    try {
      expressions_.push_back(std::make_shared<Expression>(
          Expression{std::regex(entry.substr(mark.size()), std::regex::ECMAScript | std::regex::optimize)}));
    } catch (const std::regex_error&) {
      throw Error(ErrorCode::bad_file, where, "\"" + model::printable(entry) + "\"", "a regular expression");
    }
  }
}

bool ModuleNames::name(const WeightSpec& spec) const {
  const std::string module = module_of(spec);
  const auto is_named = [&](const std::string& full) {
    const std::string between_dots = "." + full + ".";
    const auto means = [&](const std::string& entry) {
      if (entry.find_first_of("*?") != std::string::npos) return matches_wildcards(entry, full);
      return !entry.empty() && between_dots.find("." + entry + ".") != std::string::npos;
    };
    if (std::any_of(names_.begin(), names_.end(), means)) return true;
    return std::any_of(expressions_.begin(), expressions_.end(), [&](const auto& expression) {
      return std::regex_search(full, expression->regex, std::regex_constants::match_continuous);
    });
  };
  return std::any_of(std::begin(prefixes), std::end(prefixes),
                     [&](const char* prefix) { return is_named(prefix + module); });
}

WeightFormat format_of_config(std::string_view config_json, const std::string& where) {
  const model::JsonDocument document(config_json, where);
  const JsonObject root = document.root();
  if (!root.has("quantization_config")) return {};
  const JsonObject config = root.object("quantization_config");
  const std::string place = where + ": quantization_config", method = config.text("quant_method");
  if (method == "fp8") return fp8_format(config, place);
  if (method == "exl3") return exl3_format(config, place);
  if (method == "modelopt") return modelopt_format(config, place);
  if (method == "compressed-tensors") return compressed_format(config, place);
  config.refuse("quant_method", "exl3, fp8, modelopt or compressed-tensors, or --weights to say how they are stored");
}

}  // namespace tandem::engine
