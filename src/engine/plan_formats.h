// How the weights of a bare config.json are stored: what --weights names, or what the config's quantization_config says
// of every weight (spec/model.md 8.2, 8.3; spec/quantization.md 1.9, 3.4, 3.5).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "model/shape.h"
#include "model/weight_layout.h"

namespace tandem::engine {

// Of one weight. What is plain is bf16, a few vectors f32.
struct WeightCoding {
  enum class Kind : uint8_t {
    plain,
    fp8_blocks,  // a byte, and an F32 scale for 128×128 weights
    nvfp4,       // four bits, an e4m3 scale for 16 weights, an F32 scale
    exl3,        // `bits`, two F16 vectors, the codebook's constant
    flat         // every parameter has `bits`, vectors too
  } kind = Kind::plain;
  double bits = 16;
};

class WeightFormat {
 public:
  using Rule = std::function<WeightCoding(const model::WeightSpec& spec, bool is_mtp)>;

  WeightFormat() = default;  // everything plain
  WeightFormat(std::string name, Rule rule) : name_(std::move(name)), rule_(std::move(rule)) {}

  const std::string& name() const { return name_; }  // "bf16", "exl3:4", "compressed-tensors", …
  WeightCoding coding(const model::WeightSpec& spec, bool is_mtp) const {
    return rule_ ? rule_(spec, is_mtp) : WeightCoding{};
  }

 private:
  std::string name_ = "bf16";
  Rule rule_;
};

// Bytes of a weight as stored, scales included, and what `tandem inspect` calls its format: "F8_E4M3 128x128 blocks".
int64_t stored_bytes(const WeightCoding& coding, const model::WeightSpec& spec);
std::string format_name(const WeightCoding& coding, const model::WeightSpec& spec);

// "bf16", "fp8" (the set of the published FP8 checkpoint), "nvfp4" (routed experts; those of MTP fp8) or "exl3:N"
// (routed experts at N bits, 1 to 8). Throws Error(usage).
WeightFormat parse_weight_format(std::string_view text);
WeightFormat flat_format(double bytes_per_parameter);  // throws Error(usage) unless it is in (0, 8]

// What quantization_config says; without one everything is plain.
//   fp8                 the published checkpoint's set, or every linear layer that modules_to_not_convert does not name
//   exl3                every linear layer whose sides are multiples of 128 at `bits`, the head at head_bits, MTP at
//                       mtp_bits; with a scope of routed experts, or with layer_bits, those alone
//   modelopt            NVFP4: every linear layer that `ignore` (exclude_modules) does not name; MIXED_PRECISION: those
//   of
//                       quantized_layers
//   compressed-tensors  config_groups by their targets, less `ignore`
// Names are module names, parts of them between dots, shell wildcards, or "re:" and an expression that the name begins
// with. Throws Error(bad_file) naming the key of what has no format here: the weights' own headers would tell.
WeightFormat format_of_config(std::string_view config_json, const std::string& where);

}  // namespace tandem::engine
