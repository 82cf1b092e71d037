// What the configuration files of a folder in EXL3 say (spec/quantization.md 1.9, 3.4).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/quantize.h"
#include "eval/quantize_weights.h"

namespace tandem::eval {

// `quantization_config` of config.json.
nlohmann::ordered_json exl3_config(const QuantizeOptions& options, const ConversionPlan& plan,
                                   const QuantizeReport& report);
// quantization_config.json: the same with `tensor_storage` of every matrix.
nlohmann::ordered_json exl3_storage(const QuantizeOptions& options, const ConversionPlan& plan,
                                    const QuantizeReport& report);

// Trellis bits a stored weight over experts and dense matrices in EXL3; 0 where there are none (2.10: the head is
// outside).
double average_bits(const ConversionPlan& plan);

}  // namespace tandem::eval
