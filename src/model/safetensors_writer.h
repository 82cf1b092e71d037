// The other direction of safetensors.h: what stands before the data of a file that is written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/checkpoint.h"

namespace tandem::model {

// A tensor whose data will follow.
struct TensorHeader {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;

  int64_t bytes() const;
};

// The length and the JSON header, padded with spaces to whole 8 bytes, of a file in which the data of `tensors` follows
// in this order without gaps. With the metadata {"format": "pt"}, which transformers asks for.
std::string safetensors_header(const std::vector<TensorHeader>& tensors);

}  // namespace tandem::model
