// Readers of NVFP4 and EXL3 modules: quant/ checks the tensors, this file what the model makes of them.
#include "model/coded_weights.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "model/json_reader.h"
#include "quant/exl3_matrix.h"
#include "quant/tensor_facts.h"

namespace tandem::model {
namespace {

std::vector<quant::TensorFacts> facts_of(const std::string& module, std::span<const Tensor> tensors) {
  std::vector<quant::TensorFacts> facts;
  for (const Tensor& tensor : tensors)
    facts.push_back({tensor.name.substr(module.size() + 1), dtype_name(tensor.dtype), tensor.shape, tensor.data});
  return facts;
}

bool is_exl3_name(std::string_view name) {
  constexpr std::string_view names[] = {"trellis", "suh", "svh", "su", "sv", "mcg", "mul1"};
  // Also "rank0.trellis": the reader refuses it by its name.
  const std::string_view last = name.substr(name.rfind('.') == std::string_view::npos ? 0 : name.rfind('.') + 1);
  return std::find(std::begin(names), std::end(names), last) != std::end(names);
}

// A message about a module names its first tensor and the file that it lies in.
[[noreturn]] void refuse(const Tensor& tensor, std::string found, std::string expected) {
  throw Error(ErrorCode::bad_file, tensor.file + ": tensor " + printable(tensor.name), std::move(found),
              std::move(expected));
}

// The table is read by rows, and the router and mHC decide too much for too few bytes.
bool must_be_plain(const WeightSpec& spec) {
  return spec.component == Component::embedding || spec.component == Component::router ||
         spec.component == Component::mhc;
}

void check_place(LinearForm form, const Tensor& first, const WeightSpec& spec) {
  const char* name = form == LinearForm::exl3 ? "EXL3" : "NVFP4";
  if (must_be_plain(spec)) refuse(first, fmt::format("{} for {}", name, spec.name), "BF16 or F32 for this weight");
  const int64_t unit = form == LinearForm::exl3 ? ops::exl3_block : quant::nvfp4_group;
  if (spec.leaf_columns % unit != 0 && spec.leaf_columns != spec.shape[1])
    refuse(first,
           fmt::format("{} for a sum in two parts, cut at input {} of {}", name, spec.leaf_columns, spec.shape[1]),
           fmt::format("BF16, F32 or FP8, or a cut at a multiple of {}", unit));
}

Matrix nvfp4_matrix(const quant::Nvfp4Matrix& stored) {
  Matrix matrix;
  matrix.format = ops::WeightFormat::nvfp4;
  matrix.data = stored.codes;
  matrix.block_scales = stored.scales;
  matrix.outer_scale = stored.outer_scale;
  matrix.high_nibble_first = stored.order == quant::NibbleOrder::high_first;
  return matrix;
}

Matrix exl3_matrix(const quant::Exl3Matrix& stored) {
  const bool suh_is_signs = stored.suh.empty(), svh_is_signs = stored.svh.empty();
  Matrix matrix;
  matrix.format = ops::WeightFormat::exl3;
  matrix.data = stored.trellis.data();
  matrix.exl3 = {stored.bits,
                 stored.codebook,
                 stored.stride(),
                 suh_is_signs ? stored.su.data() : stored.suh.data(),
                 svh_is_signs ? stored.sv.data() : stored.svh.data(),
                 suh_is_signs,
                 svh_is_signs};
  return matrix;
}

}  // namespace

LinearForm form_of(const std::string& module, std::span<const Tensor> tensors) {
  const bool exl3 = std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& tensor) {
    return is_exl3_name(std::string_view(tensor.name).substr(module.size() + 1));
  });
  if (exl3) return LinearForm::exl3;
  return quant::is_nvfp4(facts_of(module, tensors)) ? LinearForm::nvfp4 : LinearForm::plain;
}

std::string coded_format(LinearForm form, const Matrix& matrix, std::span<const Tensor> tensors) {
  if (form == LinearForm::exl3) return fmt::format("EXL3 {} bits {}", matrix.exl3.bits, name_of(matrix.exl3.codebook));
  const bool packed = std::any_of(tensors.begin(), tensors.end(),
                                  [](const Tensor& tensor) { return tensor.name.ends_with(".weight_packed"); });
  return fmt::format("NVFP4 ({}, {} nibble first)",
                     name_of(packed ? quant::Nvfp4Dialect::compressed_tensors : quant::Nvfp4Dialect::modelopt),
                     matrix.high_nibble_first ? "high" : "low");
}

Matrix read_coded(LinearForm form, const std::string& module, std::span<const Tensor> tensors, const WeightSpec& spec,
                  quant::NibbleOrder order, std::vector<std::string>* warnings) {
  const int64_t out = spec.shape[0], in = spec.shape[1];
  const std::vector<quant::TensorFacts> facts = facts_of(module, tensors);
  check_place(form, tensors.front(), spec);
  Matrix matrix = form == LinearForm::exl3 ? exl3_matrix(quant::read_exl3(module, facts, in, out, warnings))
                                           : nvfp4_matrix(quant::read_nvfp4(module, facts, out, in, order));
  if (quant::find_tensor(module, facts, "bias") != nullptr)
    quant::refuse_tensor(module, "bias", "present", "no bias: linear layers of this model have none");
  matrix.out_features = out;
  matrix.in_features = in;
  matrix.leaf_columns = spec.leaf_columns;
  // Builds the table that plain code decodes with; a step must not allocate.
  if (form == LinearForm::exl3) quant::exl3_values(matrix.exl3.codebook);
  return matrix;
}

std::string exl3_suspicion(const Matrix& matrix) {
  const auto padded = [](int64_t size) { return (size + ops::exl3_block - 1) / ops::exl3_block * ops::exl3_block; };
  quant::Exl3Matrix stored;
  stored.bits = matrix.exl3.bits;
  stored.codebook = matrix.exl3.codebook;
  stored.in_features = padded(matrix.in_features);
  stored.out_features = padded(matrix.out_features);
  stored.trellis = {matrix.data, static_cast<size_t>(stored.in_features * stored.out_features * stored.bits / 8)};
  return quant::exl3_suspicion(stored);
}

}  // namespace tandem::model
