// fuzz-room: model
// Any tensors of one module as the loader sees them: what form they say they have, and either a refusal that names a
// tensor or a matrix whose weights are numbers.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "coded_input.h"
#include "model/coded_weights.h"
#include "ops/linear/decode.h"

namespace {

using tandem::model::Component;
using tandem::model::DType;
using tandem::model::LinearForm;
using tandem::model::Matrix;
using tandem::model::Tensor;
using tandem::model::WeightSpec;

constexpr std::string_view names[] = {"trellis", "suh",           "svh",          "su",
                                      "sv",      "mcg",           "mul1",         "bias",
                                      "weight",  "weight_packed", "weight_scale", "weight_scale_2",
                                      "scale",   "input_scale",   "rank0.suh",    "weight_global_scale"};
constexpr std::string_view dtype_names[] = {"I16", "F16", "I32", "U8", "F8_E4M3", "F32", "BF16"};
constexpr DType dtypes[] = {DType::i16, DType::f16, DType::i32, DType::u8, DType::f8_e4m3, DType::f32, DType::bf16};

std::vector<Tensor> as_stored(const std::vector<tandem::quant::TensorFacts>& facts) {
  std::vector<Tensor> tensors;
  for (const tandem::quant::TensorFacts& fact : facts) {
    Tensor tensor;
    tensor.name = "layers.0.up_proj." + fact.name;
    for (size_t i = 0; i < std::size(dtypes); ++i)
      if (dtype_names[i] == fact.dtype) tensor.dtype = dtypes[i];
    tensor.shape = fact.shape;
    tensor.data = fact.data;
    tensor.file = "model.safetensors";
    tensors.push_back(tensor);
  }
  return tensors;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::fuzz::Input input(data, size);
  WeightSpec spec;
  spec.name = "layers.0.up_proj.weight";
  spec.shape = {input.byte() + 1, input.number() + 1};
  spec.component = input.byte() % 8 == 0 ? Component::router : Component::dense_mlp;
  spec.leaf_columns = input.byte() % 2 == 0 ? spec.shape[1] : 128;
  const auto order =
      input.byte() % 2 == 0 ? tandem::quant::NibbleOrder::low_first : tandem::quant::NibbleOrder::high_first;
  const auto facts = input.tensors(names, dtype_names, 6);
  const std::vector<Tensor> tensors = as_stored(facts);
  if (tensors.empty()) return 0;
  const std::string module = "layers.0.up_proj";
  const LinearForm form = form_of(module, tensors);
  if (form == LinearForm::plain) return 0;
  try {
    std::vector<std::string> warnings;
    const Matrix matrix = read_coded(form, module, tensors, spec, order, &warnings);
    if (coded_format(form, matrix, tensors).empty()) std::abort();
    for (const float value : tandem::ops::decode(matrix))
      if (std::isnan(value)) std::abort();
    if (form == LinearForm::exl3) tandem::model::exl3_suspicion(matrix);
  } catch (const tandem::Error& error) {
    if (error.code() != tandem::ErrorCode::bad_file || error.where().find(module) == std::string::npos) std::abort();
  }
  return 0;
}
