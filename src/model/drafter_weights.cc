// Finds the drafter's tensors by name and checks them (spec/speculation.md 1.2).
#include <fmt/ranges.h>

#include <cstring>

#include "base/error.h"
#include "model/drafter.h"
#include "model/json_reader.h"
#include "ops/simd/kernels.h"

namespace tandem::model {
namespace {

class DrafterLoader {
 public:
  explicit DrafterLoader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  ops::Matrix matrix(const std::string& name, int64_t out, int64_t in) {
    const Tensor& tensor = find(name, {out, in});
    ops::Matrix matrix;
    matrix.format = tensor.dtype == DType::f32 ? ops::WeightFormat::f32 : ops::WeightFormat::bf16;
    matrix.data = tensor.data.data();
    matrix.out_features = out;
    matrix.in_features = in;
    matrix.leaf_columns = in;
    return matrix;
  }

  std::vector<float> values(const std::string& name, const std::vector<int64_t>& shape) {
    const Tensor& tensor = find(name, shape);
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    if (tensor.dtype == DType::f32) {
      std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    } else {
      ops::kernels().decode_bf16(tensor.data.data(), tensor.elements(), values.data());
    }
    return values;
  }

  // Every tensor of the checkpoint has been asked for.
  void check_all_known(const DrafterShape& shape) const {
    if (std::ssize(checkpoint_.tensors()) == found_) return;
    for (const Tensor* tensor : checkpoint_.tensors()) {
      if (!is_known(tensor->name))
        throw Error(
            ErrorCode::bad_file, tensor->file + ": tensor " + printable(tensor->name), "unknown",
            fmt::format("only the {} tensors of a DFlash2 drafter with {} layers", found_, shape.num_hidden_layers));
    }
  }

 private:
  const Tensor& find(const std::string& name, const std::vector<int64_t>& shape) {
    const Tensor* tensor = checkpoint_.find(name);
    const std::string expected = fmt::format("[{}]", fmt::join(shape, ", "));
    if (tensor == nullptr)
      throw Error(ErrorCode::bad_file, "tensor " + name, "missing", "it in the drafter with shape " + expected);
    const std::string where = tensor->file + ": tensor " + name;
    if (tensor->shape != shape)
      throw Error(ErrorCode::bad_file, where, fmt::format("shape [{}]", fmt::join(tensor->shape, ", ")), expected);
    if (tensor->dtype != DType::bf16 && tensor->dtype != DType::f32)
      throw Error(ErrorCode::bad_file, where, fmt::format("dtype {}", dtype_name(tensor->dtype)), "BF16 or F32");
    names_.push_back(name);
    ++found_;
    return *tensor;
  }
  bool is_known(const std::string& name) const {
    for (const std::string& known : names_) {
      if (known == name) return true;
    }
    return false;
  }

  const Checkpoint& checkpoint_;
  std::vector<std::string> names_;
  int64_t found_ = 0;
};

DrafterConvolution load_convolution(DrafterLoader& loader, const std::string& name, const DrafterShape& s) {
  constexpr int64_t sides = 2, taps = DrafterShape::conv_taps;
  return {loader.values(name + ".base_kernel", {sides, taps, s.hidden_size}),
          loader.matrix(name + ".kernel_projection.weight", sides * taps * s.groups(), s.hidden_size)};
}

DrafterLayer load_layer(DrafterLoader& loader, int64_t number, const DrafterShape& s) {
  const std::string layer = fmt::format("layers.{}.", number), attention = layer + "self_attn.", mlp = layer + "mlp.";
  DrafterLayer w;
  w.input_layernorm = loader.values(layer + "input_layernorm.weight", {s.hidden_size});
  w.q_proj = loader.matrix(attention + "q_proj.weight", s.query_width(), s.hidden_size);
  w.k_proj = loader.matrix(attention + "k_proj.weight", s.key_width(), s.hidden_size);
  w.v_proj = loader.matrix(attention + "v_proj.weight", s.key_width(), s.hidden_size);
  w.o_proj = loader.matrix(attention + "o_proj.weight", s.hidden_size, s.query_width());
  w.q_norm = loader.values(attention + "q_norm.weight", {s.head_dim});
  w.k_norm = loader.values(attention + "k_norm.weight", {s.head_dim});
  w.attention_conv = load_convolution(loader, layer + "attention_conv", s);
  w.post_attention_layernorm = loader.values(layer + "post_attention_layernorm.weight", {s.hidden_size});
  w.gate_proj = loader.matrix(mlp + "gate_proj.weight", s.intermediate_size, s.hidden_size);
  w.up_proj = loader.matrix(mlp + "up_proj.weight", s.intermediate_size, s.hidden_size);
  w.down_proj = loader.matrix(mlp + "down_proj.weight", s.hidden_size, s.intermediate_size);
  w.mlp_conv = load_convolution(loader, layer + "mlp_conv", s);
  return w;
}

}  // namespace

DrafterWeights load_drafter_weights(const Checkpoint& checkpoint, const DrafterShape& s) {
  DrafterLoader loader(checkpoint);
  DrafterWeights weights;
  for (int64_t i = 0; i < s.num_hidden_layers; ++i) weights.layers.push_back(load_layer(loader, i, s));
  weights.fc = loader.matrix("fc.weight", s.hidden_size, s.taps() * s.hidden_size);
  weights.hidden_norm = loader.values("hidden_norm.weight", {s.hidden_size});
  weights.norm = loader.values("norm.weight", {s.hidden_size});
  const std::string selector = "candidate_selector.";
  weights.hidden_projection = loader.matrix(selector + "hidden_projection.weight", s.selector_rank, s.hidden_size);
  weights.predecessor_codebook = loader.matrix(selector + "predecessor_codebook", s.vocab_size, s.selector_rank);
  weights.successor_codebook = loader.matrix(selector + "successor_codebook", s.vocab_size, s.selector_rank);
  loader.check_all_known(s);
  return weights;
}

}  // namespace tandem::model
