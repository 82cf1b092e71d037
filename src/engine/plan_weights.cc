// Walks the model's list of tensors, adds up what each costs and which rank has it.
#include "engine/plan_weights.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "base/error.h"
#include "model/json_reader.h"
#include "model/split.h"
#include "model/weight_source.h"

namespace tandem::engine {
namespace {

using model::Component;
using model::WeightSpec;

int64_t elements(const WeightSpec& spec) {
  return std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{1}, std::multiplies<>());
}

// The number of the expert in "layers.3.mlp.experts.17.up_proj.weight".
int64_t expert_of(const WeightSpec& spec) {
  constexpr std::string_view mark = ".experts.";
  const size_t at = spec.name.find(mark) + mark.size();
  int64_t expert = 0;
  std::from_chars(spec.name.data() + at, spec.name.data() + spec.name.size(), expert);
  return expert;
}

// Of `bytes` of a weight, what one of two ranks holds: whole rows or columns, so the share is exact.
int64_t share(const WeightSpec& spec, int64_t bytes, int64_t experts, int rank) {
  const auto part = [&](int64_t length) {
    return bytes * model::part_of(length, spec.split_unit, rank, 2).count / length;
  };
  switch (spec.split) {
    case model::Split::replicated: return bytes;
    case model::Split::rows: return part(spec.shape.front());
    case model::Split::columns: return part(spec.shape.back());
    case model::Split::experts: return model::part_of(experts, 1, rank, 2).holds(expert_of(spec)) ? bytes : 0;
  }
  return bytes;
}

WeightBytes sum(const model::Shape& shape, const std::function<int64_t(const WeightSpec&)>& bytes_of) {
  const model::Inventory inventory = model::make_inventory(shape);
  WeightBytes sum;
  sum.parameters = inventory.main_parameters + inventory.mtp_parameters;
  for (const auto* list : {&inventory.main, &inventory.mtp}) {
    for (const WeightSpec& spec : *list) {
      const int64_t bytes = bytes_of(spec);
      sum.total += bytes;
      for (int rank = 0; rank < 2; ++rank)
        sum.rank[static_cast<size_t>(rank)] += share(spec, bytes, shape.n_routed_experts, rank);
    }
  }
  return sum;
}

bool ends_with_one_of(const std::string& name, std::initializer_list<const char*> endings) {
  for (const char* ending : endings)
    if (name.ends_with(ending)) return true;
  return false;
}

// Stored as F32 in every published checkpoint (spec/model.md 8.1).
bool is_f32(const WeightSpec& spec) {
  return ends_with_one_of(spec.name, {"_base", "_scale", ".A_log", ".dt_bias", ".e_score_correction_bias"});
}

bool is_fp8(const WeightSpec& spec) {
  switch (spec.component) {
    case Component::dense_mlp:
    case Component::shared_expert:
    case Component::routed_experts: return true;
    case Component::mla:
      return ends_with_one_of(spec.name,
                              {"q_a_proj.weight", "q_b_proj.weight", "kv_a_proj_with_mqa.weight", "o_proj.weight"});
    default: return false;
  }
}

int64_t plain_bytes(const WeightSpec& spec) { return elements(spec) * (is_f32(spec) ? 4 : 2); }

int64_t fp8_bytes(const WeightSpec& spec) {  // codes and an F32 scale for each 128×128 block (spec/model.md 8.2)
  return elements(spec) + 4 * ((spec.shape[0] + 127) / 128) * ((spec.shape[1] + 127) / 128);
}

int64_t bytes_in(const WeightFormat& format, const WeightSpec& spec, int64_t mtp_layer) {
  const int64_t n = elements(spec);
  const bool expert = spec.component == Component::routed_experts;
  switch (format.kind) {
    case WeightFormat::Kind::bf16: return plain_bytes(spec);
    case WeightFormat::Kind::fp8: return is_fp8(spec) ? fp8_bytes(spec) : plain_bytes(spec);
    case WeightFormat::Kind::nvfp4:  // nibbles, an e4m3 scale for 16 values, an F32 scale (spec/model.md 8.3)
      if (expert && spec.layer == mtp_layer) return fp8_bytes(spec);
      return expert ? n / 2 + n / 16 + 4 : plain_bytes(spec);
    case WeightFormat::Kind::exl3:  // trellis, suh and svh in F16, the codebook's constant (spec/quantization.md 3.4)
      if (!expert) return plain_bytes(spec);
      return std::llround(static_cast<double>(n) * format.bits / 8) + 2 * (spec.shape[0] + spec.shape[1]) + 4;
    case WeightFormat::Kind::flat: return std::llround(static_cast<double>(n) * format.bits / 8);
  }
  return 0;
}

// Stored bytes by module: "a.q_proj" for "a.q_proj.weight", "a.q_proj.weight_scale_inv", "a.q_proj.trellis", …
std::map<std::string, int64_t> modules_of(const model::Checkpoint& checkpoint) {
  std::map<std::string, int64_t> modules;
  for (const model::Tensor* tensor : checkpoint.tensors()) {
    const size_t dot = tensor->name.rfind('.');
    if (dot != std::string::npos && !tensor->name.ends_with("bias"))  // weights of their own
      modules[tensor->name.substr(0, dot)] += static_cast<int64_t>(tensor->data.size());
  }
  return modules;
}

}  // namespace

WeightFormat parse_weight_format(std::string_view text) {
  if (text == "bf16") return {WeightFormat::Kind::bf16, 16};
  if (text == "fp8") return {WeightFormat::Kind::fp8, 8};
  if (text == "nvfp4") return {WeightFormat::Kind::nvfp4, 4};
  constexpr std::string_view exl3 = "exl3:";
  double bits = 0;
  if (text.starts_with(exl3)) {
    const std::string_view number = text.substr(exl3.size());
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), bits);
    if (error == std::errc() && end == number.data() + number.size() && bits >= 1 && bits <= 8)
      return {WeightFormat::Kind::exl3, bits};
  }
  throw Error(ErrorCode::usage, "--weights", "\"" + std::string(text) + "\"",
              "bf16, fp8, nvfp4 or exl3:N with N from 1 to 8 bits");
}

WeightFormat flat_format(double bytes_per_parameter) {
  if (!(bytes_per_parameter > 0 && bytes_per_parameter <= 8))
    throw Error(ErrorCode::usage, "--weights-bytes-per-parameter", fmt::format("{}", bytes_per_parameter),
                "more than 0, at most 8");
  return {WeightFormat::Kind::flat, 8 * bytes_per_parameter};
}

std::string name_of(const WeightFormat& format) {
  switch (format.kind) {
    case WeightFormat::Kind::bf16: return "bf16";
    case WeightFormat::Kind::fp8: return "fp8";
    case WeightFormat::Kind::nvfp4: return "nvfp4";
    case WeightFormat::Kind::exl3: return fmt::format("exl3:{}", format.bits);
    case WeightFormat::Kind::flat: return fmt::format("{} bytes a parameter", format.bits / 8);
  }
  return "";
}

WeightFormat format_of_config(std::string_view config_json, const std::string& where) {
  const model::JsonDocument document(config_json, where);
  const model::JsonObject root = document.root();
  if (!root.has("quantization_config")) return {};
  const model::JsonObject quantization = root.object("quantization_config");
  const std::string method = quantization.text("quant_method");
  if (method == "fp8") return {WeightFormat::Kind::fp8, 8};
  if (method == "exl3") {
    const double bits = quantization.number("bits");
    if (!(bits >= 1 && bits <= 8)) quantization.refuse("bits", "a number from 1 to 8");
    return {WeightFormat::Kind::exl3, bits};
  }
  quantization.refuse("quant_method", "fp8 or exl3, or --weights to say how the weights are stored");
}

WeightBytes weights_in_format(const model::Shape& shape, const WeightFormat& format) {
  return sum(shape, [&](const WeightSpec& spec) { return bytes_in(format, spec, shape.num_hidden_layers); });
}

WeightBytes weights_of_checkpoint(const model::Checkpoint& checkpoint, const model::Shape& shape) {
  const model::WeightSource source(checkpoint, shape);
  const auto modules = modules_of(checkpoint);
  return sum(shape, [&](const WeightSpec& spec) {
    constexpr std::string_view ending = ".weight";
    const std::string name = source.full_name(spec);
    const model::Tensor* tensor = source.locate(spec).tensor;
    if (name.ends_with(ending)) {
      const auto module = modules.find(name.substr(0, name.size() - ending.size()));
      if ((tensor == nullptr || tensor->name == name) && module != modules.end()) return module->second;
    }
    if (tensor == nullptr)
      throw Error(ErrorCode::bad_file, name, "is missing", "the tensors that config.json asks for");
    return elements(spec) * model::dtype_bytes(tensor->dtype);  // also a part of a tensor that holds many weights
  });
}

}  // namespace tandem::engine
