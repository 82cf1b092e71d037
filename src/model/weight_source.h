// Finds a weight in a checkpoint whatever names its writer chose: the hub's, or those of transformers' save_pretrained
// (spec/model.md 8.4), where three convolutions or all experts of a layer share one tensor. A linear layer X is read as
// what its own tensors say: X.weight with numbers, with FP8 codes and X.weight_scale_inv (compressed-tensors:
// X.weight_scale), NVFP4 in either dialect, or EXL3. A checkpoint may mix them.
#pragma once

#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/coded_weights.h"
#include "model/quantization_config.h"
#include "model/weight_layout.h"

namespace tandem::model {

// Where a weight is stored: rows [first_row, first_row + rows) of slice `slice` of a tensor.
struct StoredWeight {
  const Tensor* tensor = nullptr;     // nullptr: missing
  std::vector<int64_t> stored_shape;  // what the whole tensor must look like
  int64_t slice = 0;                  // first index of a stacked [experts, rows, columns] tensor
  int64_t first_row = 0;              // inside the slice
};

class WeightSource {
 public:
  // The prefix of the text model's names is taken from where the embedding is: "model.language_model." (hub), "model."
  // or "language_model.model.". `checkpoint` must outlive this object.
  // Throws Error(bad_file) for configuration files beside it that cannot be read (quantization_config.h).
  WeightSource(const Checkpoint& checkpoint, const Shape& shape, WeightOptions options = {});

  bool has_layer(int64_t layer) const;  // any tensor of that layer

  // The full hub name of a weight, as shown in messages.
  std::string full_name(const WeightSpec& spec) const;
  StoredWeight locate(const WeightSpec& spec) const;

  // The tensors of a weight in NVFP4 or EXL3; form plain for every other weight, stored or not.
  struct Module {
    LinearForm form = LinearForm::plain;
    std::string name;  // without a last dot
    std::span<const Tensor> tensors;
  };
  Module module_of(const WeightSpec& spec) const;

  // Tensor with the FP8 scales of `tensor` (spec/model.md 8.2), or nullptr.
  const Tensor* scales_of(const Tensor& tensor) const;

  // Each throws Error(bad_file) naming the tensor if it is missing or its shape or dtype is not as expected. What is
  // odd but readable goes to `warnings` (may be nullptr).
  Matrix matrix(const WeightSpec& spec, std::vector<std::string>* warnings = nullptr) const;
  void append_values(const WeightSpec& spec, Vector& target) const;  // BF16, F16 or F32, converted to fp32

 private:
  StoredWeight checked(const WeightSpec& spec) const;
  void set_block_scales(const StoredWeight& stored, Matrix& matrix) const;

  const Checkpoint& checkpoint_;
  WeightOptions options_;
  StatedWidths widths_;
  int64_t experts_;
  std::string prefix_, head_prefix_;
};

}  // namespace tandem::model
