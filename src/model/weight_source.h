// Finds a weight in a checkpoint whatever names its writer chose: the hub's, or those of transformers' save_pretrained
// (spec/model.md 8.4), where three convolutions or all experts of a layer share one tensor.
#pragma once

#include <string>
#include <vector>

#include "model/checkpoint.h"
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
  WeightSource(const Checkpoint& checkpoint, const Shape& shape);

  bool has_layer(int64_t layer) const;  // any tensor of that layer

  // The full hub name of a weight, as shown in messages.
  std::string full_name(const WeightSpec& spec) const;
  StoredWeight locate(const WeightSpec& spec) const;
  // Name of the tensor with the FP8 scales of `tensor` (spec/model.md 8.2).
  static std::string scale_name(const Tensor& tensor) { return tensor.name + "_scale_inv"; }

  // Each throws Error(bad_file) naming the tensor if it is missing or its shape or dtype is not as expected.
  Matrix matrix(const WeightSpec& spec) const;                       // BF16, F32 or FP8 blocks
  void append_values(const WeightSpec& spec, Vector& target) const;  // BF16, F16 or F32, converted to fp32

 private:
  StoredWeight checked(const WeightSpec& spec) const;
  void set_block_scales(const StoredWeight& stored, Matrix& matrix) const;

  const Checkpoint& checkpoint_;
  int64_t experts_;
  std::string prefix_, head_prefix_;
};

}  // namespace tandem::model
