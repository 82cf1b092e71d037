// Formats by name, and what a weight costs in each; plan_config_formats.cc reads configs.
#include "engine/plan_formats.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "engine/plan_config_formats.h"
#include "model/json_reader.h"

namespace tandem::engine {
namespace {

using model::Component;
using model::WeightSpec;
using Kind = WeightCoding::Kind;

int64_t elements(const WeightSpec& spec) {
  return std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{1}, std::multiplies<>());
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

WeightFormat exl3_experts(double bits) {
  return {fmt::format("exl3:{}", bits), [bits](const WeightSpec& spec, bool) {
            return spec.component == Component::routed_experts ? WeightCoding{Kind::exl3, bits} : WeightCoding{};
          }};
}

}  // namespace

bool is_published_fp8(const WeightSpec& spec) {
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

int64_t stored_bytes(const WeightCoding& coding, const WeightSpec& spec) {
  const int64_t n = elements(spec);
  switch (coding.kind) {
    case Kind::plain: return n * (is_f32(spec) ? 4 : 2);
    case Kind::fp8_blocks: return n + 4 * ((spec.shape[0] + 127) / 128) * ((spec.shape[1] + 127) / 128);
    case Kind::nvfp4: return n / 2 + n / 16 + 4;
    case Kind::exl3:
      return std::llround(static_cast<double>(n) * coding.bits / 8) + 2 * (spec.shape[0] + spec.shape[1]) + 4;
    case Kind::flat: return std::llround(static_cast<double>(n) * coding.bits / 8);
  }
  return 0;
}

std::string format_name(const WeightCoding& coding, const WeightSpec& spec) {
  switch (coding.kind) {
    case Kind::plain: return is_f32(spec) ? "F32" : "BF16";
    case Kind::fp8_blocks: return "F8_E4M3 128x128 blocks";
    case Kind::nvfp4: return "NVFP4";
    case Kind::exl3: return fmt::format("EXL3 {} bits", coding.bits);
    case Kind::flat: return fmt::format("{} bits", coding.bits);
  }
  return "";
}

WeightFormat parse_weight_format(std::string_view text) {
  if (text == "bf16") return {};
  if (text == "fp8")
    return {"fp8", [](const WeightSpec& spec, bool) {
              return is_published_fp8(spec) ? WeightCoding{Kind::fp8_blocks, 8} : WeightCoding{};
            }};
  if (text == "nvfp4")
    return {"nvfp4", [](const WeightSpec& spec, bool is_mtp) {
              if (spec.component != Component::routed_experts) return WeightCoding{};
              return is_mtp ? WeightCoding{Kind::fp8_blocks, 8} : WeightCoding{Kind::nvfp4, 4};
            }};
  constexpr std::string_view exl3 = "exl3:";
  double bits = 0;
  if (text.starts_with(exl3)) {
    const std::string_view number = text.substr(exl3.size());
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), bits);
    if (error == std::errc() && end == number.data() + number.size() && bits >= 1 && bits <= 8)
      return exl3_experts(bits);
  }
  throw Error(ErrorCode::usage, "--weights", "\"" + std::string(text) + "\"",
              "bf16, fp8, nvfp4 or exl3:N with N from 1 to 8 bits");
}

WeightFormat flat_format(double bytes_per_parameter) {
  if (!(bytes_per_parameter > 0 && bytes_per_parameter <= 8))
    throw Error(ErrorCode::usage, "--weights-bytes-per-parameter", fmt::format("{}", bytes_per_parameter),
                "more than 0, at most 8");
  const WeightCoding coding{Kind::flat, 8 * bytes_per_parameter};
  return {fmt::format("{} bytes a parameter", bytes_per_parameter),
          [coding](const WeightSpec&, bool) { return coding; }};
}

}  // namespace tandem::engine
