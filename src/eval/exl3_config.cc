// The keys that exllamav3 writes, and those of the published TR3 checkpoint.
#include "eval/exl3_config.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "eval/manifest.h"

namespace tandem::eval {

using Json = nlohmann::ordered_json;

double average_bits(const ConversionPlan& plan) {
  double bits = 0, weights = 0;
  for (const auto& [name, converted] : plan.converted)
    for (const ConvertedWeight& weight : converted) {
      if (weight.coding != Coding::exl3 || weight.component == model::Component::lm_head) continue;
      const auto stored = static_cast<double>(weight.padded_in() * weight.padded_out());
      bits += weight.bits * stored;
      weights += stored;
    }
  return weights > 0 ? bits / weights : 0;
}

Json exl3_config(const QuantizeOptions& options, const ConversionPlan& plan, const QuantizeReport& report) {
  const Exl3Options& exl3 = options.exl3;
  constexpr int plain_bits = 16;  // as converters say of a head that stays
  const auto windows = std::ssize(exl3.calibration.windows);
  const double bits = report.average_bits > 0 ? report.average_bits : exl3.head_bits;
  Json config = {{"quant_method", "exl3"}, {"version", exl3_encoder_version}};
  config["bits"] = std::round(bits * 1e4) / 1e4;
  config["head_bits"] = options.head == Coding::exl3 ? exl3.head_bits : plain_bits;
  config["calibration"] = {{"rows", windows}, {"cols", exl3.calibration.size}};
  config["out_scales"] = exl3.out_scales == quant::Exl3OutScales::always  ? "always"
                         : exl3.out_scales == quant::Exl3OutScales::never ? "never"
                                                                          : "auto";
  config["codebook"] = name_of(exl3.codebook);
  if (exl3.layout == Exl3Layout::tr3) {
    config["scope"] = "glm53_routed_experts_only";
    config["non_routed_dtype_policy"] = "official_source_native";
  }
  config["modules_to_not_convert"] = plan.kept_modules;
  return config;
}

Json exl3_storage(const QuantizeOptions& options, const ConversionPlan& plan, const QuantizeReport& report) {
  Json config = exl3_config(options, plan, report);
  Json& storage = config["tensor_storage"] = Json::object();
  for (const auto& [name, converted] : plan.converted)
    for (const ConvertedWeight& weight : converted) {
      if (weight.coding != Coding::exl3) continue;
      Json stored = Json::object();
      for (const model::TensorHeader& tensor : weight.tensors)
        stored[tensor.name] = {{"shape", tensor.shape},
                               {"n_bytes", tensor.bytes()},
                               {"dtype", fmt::format("torch.{}", tensor.dtype == model::DType::i16   ? "int16"
                                                                 : tensor.dtype == model::DType::f16 ? "float16"
                                                                                                     : "int32")}};
      Json& module = storage[weight.module()] = {{"stored_tensors", stored}, {"quant_format", "exl3"}};
      module["bits_per_weight"] = weight.bits;
      if (options.exl3.codebook == quant::Exl3Codebook::mcg) module["mcg_multiplier"] = quant::mcg_multiplier;
      if (options.exl3.codebook == quant::Exl3Codebook::mul1) module["mul1_multiplier"] = quant::mul1_multiplier;
    }
  return config;
}

}  // namespace tandem::eval
