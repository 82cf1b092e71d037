// Bytes of the weights by rank: of a checkpoint as it is stored, or of a bare config.json in a named format
// (spec/model.md 1.3, 8; spec/quantization.md 3.4).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/checkpoint.h"
#include "model/inventory.h"
#include "model/shape.h"

namespace tandem::engine {

// How the weights of a bare config.json are stored. What is not quantised is bf16, a few vectors f32.
struct WeightFormat {
  enum class Kind {
    bf16,
    fp8,    // 128×128 blocks: MLA projections, MLPs, shared and routed experts
    nvfp4,  // routed experts; those of MTP fp8
    exl3,   // routed experts at `bits` bits
    flat    // every parameter has `bits` bits
  } kind = Kind::bf16;
  double bits = 16;
};

// "bf16", "fp8", "nvfp4" or "exl3:N", N bits from 1 to 8. Throws Error(usage).
WeightFormat parse_weight_format(std::string_view text);
WeightFormat flat_format(double bytes_per_parameter);  // throws Error(usage) unless it is in (0, 8]
std::string name_of(const WeightFormat& format);
// What quantization_config and dtype of a config.json say. Throws Error(bad_file) for a method that has no format here.
WeightFormat format_of_config(std::string_view config_json, const std::string& where);

struct WeightBytes {
  int64_t parameters = 0;
  int64_t total = 0;              // as stored
  std::array<int64_t, 2> rank{};  // each of two ranks; one rank alone has the total
  int64_t of_rank(int rank_number, int ranks) const {
    return ranks == 1 ? total : rank[static_cast<size_t>(rank_number)];
  }
};

// The text model, with its MTP layer where the shape has one.
WeightBytes weights_in_format(const model::Shape& shape, const WeightFormat& format);
// As the tensors of the checkpoint are stored, whatever their format. Throws Error(bad_file) naming a tensor of which
// nothing is stored.
WeightBytes weights_of_checkpoint(const model::Checkpoint& checkpoint, const model::Shape& shape);

}  // namespace tandem::engine
