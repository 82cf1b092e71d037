// What a checkpoint says about one stored tensor, as plain facts: the readers of this room see no files and no names of
// a model. Everything here comes from strangers and is checked by the reader that takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::quant {

struct TensorFacts {
  std::string name;   // what follows the module's prefix and its dot: "trellis", "weight_scale"
  std::string dtype;  // as safetensors spells it: "F16", "I16", "U8", "F8_E4M3"
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // may be unaligned; must live as long as what is read from it
};

// "[256, 128, 64]", "[]" for a scalar.
std::string shape_text(std::span<const int64_t> shape);

// The tensor called `name`, or nullptr. Throws Error(bad_file) when two have the name.
const TensorFacts* find_tensor(std::string_view prefix, std::span<const TensorFacts> tensors, std::string_view name);

// Throws Error(bad_file) at "<prefix>.<name>" unless dtype is one of `dtypes` ("I16 or U16"), the shape is `shape` and
// the data has exactly its bytes.
void check_tensor(std::string_view prefix, const TensorFacts& tensor, std::string_view dtypes,
                  std::span<const int64_t> shape);

// The same for one element: shape [] or [1]. 4-byte types only.
void check_scalar(std::string_view prefix, const TensorFacts& tensor, std::string_view dtypes);

[[noreturn]] void refuse_tensor(std::string_view prefix, std::string_view name, std::string found,
                                std::string expected = {});

}  // namespace tandem::quant
