// Linear layers whose tensors say that they are NVFP4 or EXL3: from the tensors of one module to a Matrix
// (spec/model.md 8.3, spec/quantization.md 1.1, 3.4).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/weight_layout.h"
#include "quant/nvfp4.h"

namespace tandem::model {

enum class LinearForm {
  plain,  // X.weight of numbers, or FP8 with its block scales
  nvfp4,
  exl3,
};

// What the tensors called "<module>.*" say they are, well formed or not.
LinearForm form_of(const std::string& module, std::span<const Tensor> tensors);

// "NVFP4 (ModelOpt)", "EXL3 4 bits mcg": for reports.
std::string coded_format(LinearForm form, const Matrix& matrix, std::span<const Tensor> tensors);

// The weight `spec` asks for, from the tensors of `module`. Throws Error(bad_file) naming the tensor, what was found
// and what was expected: everything that quant/ refuses, a bias, a weight that must be stored as plain numbers, and a
// sum that two ranks share whose border lies inside a group of scales or a transform. Oddities that can be read are
// appended to `warnings` (may be nullptr).
Matrix read_coded(LinearForm form, const std::string& module, std::span<const Tensor> tensors, const WeightSpec& spec,
                  quant::NibbleOrder order, std::vector<std::string>* warnings);

// Whether the decoded weights of a correctly loaded EXL3 matrix look like random states; one sentence, or empty.
std::string exl3_suspicion(const Matrix& matrix);

}  // namespace tandem::model
