// What becomes of every tensor in a conversion, and the conversion of one.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "eval/quantize.h"
#include "model/checkpoint.h"
#include "model/safetensors_writer.h"
#include "model/shape.h"

namespace tandem::eval {

// A projection that is converted: rows of a stored tensor, which may hold several.
struct ConvertedWeight {
  std::string name;  // "….weight"
  model::Component component = model::Component::embedding;
  Coding coding = Coding::keep;
  model::Matrix matrix;                      // BF16 or F32, points into the checkpoint
  std::vector<model::TensorHeader> tensors;  // in the order in which encoded() returns their bytes

  int64_t parameters() const { return matrix.out_features * matrix.in_features; }
  int64_t source_bytes() const;
  int64_t bytes() const;
};

struct ConversionPlan {
  std::map<std::string, std::vector<ConvertedWeight>> converted;  // by the name of the stored tensor
  std::set<std::string> kept_modules;                             // linear layers that stay; "….mlp.experts" for all
};

// Every tensor that the loader asks for is looked up and checked. Throws as quantize() does.
ConversionPlan plan_conversion(const model::Checkpoint& checkpoint, const model::Shape& shape, Coding experts,
                               Coding dense);

// The bytes of weight.tensors one after the other. Throws Error(bad_file) for a value that is not finite.
std::vector<std::byte> encoded(const ConvertedWeight& weight);

}  // namespace tandem::eval
