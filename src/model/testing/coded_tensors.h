// For tests: linear layers of a checkpoint turned into FP8 blocks, NVFP4 and EXL3, beside plain F32 tensors of what the
// coded ones mean. EXL3 trellises are random (any bits are one), with scales that give values of the original size.
#pragma once

#include <cmath>
#include <functional>
#include <random>

#include "model/testing/checkpoint_files.h"
#include "quant/exl3_matrix.h"
#include "quant/fp8.h"
#include "quant/half.h"
#include "quant/nvfp4.h"

namespace tandem::model::testing {

enum class Coding { keep, fp8_block, fp8_block_compressed, nvfp4_modelopt, nvfp4_compressed, exl3 };

struct Exl3Style {
  int bits = 4;
  quant::Exl3Codebook codebook = quant::Exl3Codebook::mcg;
  bool marker_is_vector = false;  // shape [1] as the uniform layout stores it; else a scalar
  bool legacy_signs = false;
};

struct CodedTensors {
  std::vector<StoredTensor> coded, plain;
};

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline std::vector<float> values_of(const StoredTensor& tensor) {
  if (tensor.dtype == DType::f32) {
    std::vector<float> values(tensor.bytes.size() / 4);
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  }
  std::vector<float> values;
  for (size_t i = 0; i < tensor.bytes.size(); i += 2) {
    uint16_t half;
    std::memcpy(&half, tensor.bytes.data() + i, 2);
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(half) << 16));
  }
  return values;
}

class Coder {
 public:
  explicit Coder(uint32_t seed = 7) : random_(seed) {}

  // Appends the coded tensors of `weight` ([out, in], BF16 or F32, named "X.weight") to result.coded and an F32
  // X.weight of their values to result.plain.
  void code(const StoredTensor& weight, Coding coding, const Exl3Style& style, CodedTensors& result) {
    const std::string module = weight.name.substr(0, weight.name.size() - std::string(".weight").size());
    const int64_t out = weight.shape[0], in = weight.shape[1];
    std::vector<float> values = values_of(weight);
    switch (coding) {
      case Coding::keep:
        result.coded.push_back(weight);
        result.plain.push_back(weight);
        return;
      case Coding::fp8_block: fp8(module, "weight_scale_inv", out, in, values, result); break;
      case Coding::fp8_block_compressed: fp8(module, "weight_scale", out, in, values, result); break;
      case Coding::nvfp4_modelopt:
      case Coding::nvfp4_compressed: nvfp4(module, coding, out, in, values, result); break;
      case Coding::exl3: exl3(module, style, out, in, values, result); break;
    }
    result.plain.push_back({weight.name, DType::f32, weight.shape, bytes_of(values)});
  }

 private:
  static void fp8(const std::string& module, const char* scales_name, int64_t out, int64_t in,
                  std::vector<float>& values, CodedTensors& result) {
    std::vector<std::byte> codes(values.size());
    std::vector<float> scales(static_cast<size_t>(quant::fp8_blocks(out) * quant::fp8_blocks(in)));
    quant::fp8_block_encode(values.data(), out, in, codes.data(), scales.data());
    for (int64_t row = 0; row < out; ++row)
      quant::fp8_block_decode_row(codes.data(), reinterpret_cast<const std::byte*>(scales.data()), row, in,
                                  values.data() + row * in);
    result.coded.push_back({module + ".weight", DType::f8_e4m3, {out, in}, raw(codes)});
    result.coded.push_back(
        {module + "." + scales_name, DType::f32, {quant::fp8_blocks(out), quant::fp8_blocks(in)}, bytes_of(scales)});
  }

  static void nvfp4(const std::string& module, Coding coding, int64_t out, int64_t in, std::vector<float>& values,
                    CodedTensors& result) {
    quant::Nvfp4Data data = quant::nvfp4_encode(values.data(), out, in);
    const bool modelopt = coding == Coding::nvfp4_modelopt;
    const float stored = modelopt ? data.outer_scale : 1.0f / data.outer_scale;
    quant::Nvfp4Matrix matrix;
    matrix.codes = data.codes.data();
    matrix.scales = data.scales.data();
    matrix.outer_scale = modelopt ? stored : 1.0f / stored;
    matrix.rows = out;
    matrix.columns = in;
    quant::nvfp4_decode_rows(matrix, 0, out, values.data());
    result.coded.push_back(
        {module + (modelopt ? ".weight" : ".weight_packed"), DType::u8, {out, in / 2}, raw(data.codes)});
    result.coded.push_back({module + ".weight_scale", DType::f8_e4m3, {out, in / 16}, raw(data.scales)});
    result.coded.push_back({module + (modelopt ? ".weight_scale_2" : ".weight_global_scale"), DType::f32,
                            modelopt ? std::vector<int64_t>{} : std::vector<int64_t>{1},
                            bytes_of(std::vector<float>{stored})});
  }

  void exl3(const std::string& module, const Exl3Style& style, int64_t out, int64_t in, std::vector<float>& values,
            CodedTensors& result) {
    const auto padded = [](int64_t size) { return (size + 127) / 128 * 128; };
    const int64_t stored_out = padded(out), stored_in = padded(in);
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * value;
    const double size = style.legacy_signs ? 1.0 : std::sqrt(squares / static_cast<double>(values.size())) / 1.24;
    std::vector<uint16_t> trellis(static_cast<size_t>(stored_in * stored_out * style.bits / 16)), suh, svh, su, sv;
    for (uint16_t& unit : trellis) unit = static_cast<uint16_t>(random_());
    const auto scale = [&](double magnitude) {
      const double share = 0.75 + 0.5 * static_cast<double>(random_() % 1024) / 1024;
      return quant::float_to_half(static_cast<float>(random_() % 2 == 0 ? magnitude * share : -magnitude * share));
    };
    for (int64_t i = 0; i < stored_in; ++i) suh.push_back(scale(1));
    for (int64_t i = 0; i < stored_out; ++i) svh.push_back(scale(size));
    for (int64_t i = 0; i < stored_in / 16; ++i) su.push_back(static_cast<uint16_t>(random_()));
    for (int64_t i = 0; i < stored_out / 16; ++i) sv.push_back(static_cast<uint16_t>(random_()));
    quant::Exl3Matrix matrix;
    matrix.trellis = std::as_bytes(std::span(trellis));
    matrix.bits = style.bits;
    matrix.codebook = style.codebook;
    matrix.in_features = stored_in;
    matrix.out_features = stored_out;
    (style.legacy_signs ? matrix.su : matrix.suh) = std::as_bytes(std::span(style.legacy_signs ? su : suh));
    (style.legacy_signs ? matrix.sv : matrix.svh) = std::as_bytes(std::span(style.legacy_signs ? sv : svh));
    const std::vector<double> dense = quant::exl3_dense(matrix);
    for (int64_t o = 0; o < out; ++o)
      for (int64_t k = 0; k < in; ++k)
        values[static_cast<size_t>(o * in + k)] = static_cast<float>(dense[static_cast<size_t>(k * stored_out + o)]);
    result.coded.push_back(
        {module + ".trellis", DType::i16, {stored_in / 16, stored_out / 16, 16 * style.bits}, raw(trellis)});
    if (style.legacy_signs) {
      result.coded.push_back({module + ".su", DType::i16, {stored_in / 16}, raw(su)});
      result.coded.push_back({module + ".sv", DType::i16, {stored_out / 16}, raw(sv)});
    } else {
      result.coded.push_back({module + ".suh", DType::f16, {stored_in}, raw(suh)});
      result.coded.push_back({module + ".svh", DType::f16, {stored_out}, raw(svh)});
    }
    if (style.codebook == quant::Exl3Codebook::three_inst) return;
    const bool mcg = style.codebook == quant::Exl3Codebook::mcg;
    const std::vector<uint32_t> value = {mcg ? quant::mcg_multiplier : quant::mul1_multiplier};
    result.coded.push_back({module + (mcg ? ".mcg" : ".mul1"), DType::i32,
                            style.marker_is_vector ? std::vector<int64_t>{1} : std::vector<int64_t>{}, raw(value)});
  }

  std::mt19937 random_;
};

// A linear layer of the text model that any format can hold and two ranks can share: sizes of whole blocks of 128.
inline bool is_codable(const StoredTensor& tensor) {
  const std::string& name = tensor.name;
  if (!name.ends_with(".weight") || tensor.shape.size() != 2 || name.starts_with("model.visual")) return false;
  if (tensor.shape[0] % 128 != 0 || tensor.shape[1] % 128 != 0) return false;
  return name.find("embed_tokens") == std::string::npos && name.find("mlp.gate.weight") == std::string::npos;
}

struct Choice {
  Coding coding = Coding::keep;
  Exl3Style style = {};
};

// Every codable layer as `choose` says for its name.
inline CodedTensors coded_tensors(const std::vector<StoredTensor>& tensors,
                                  const std::function<Choice(const std::string&)>& choose) {
  Coder coder;
  CodedTensors result;
  for (const StoredTensor& tensor : tensors) {
    if (!is_codable(tensor)) {
      result.coded.push_back(tensor);
      result.plain.push_back(tensor);
      continue;
    }
    const Choice choice = choose(tensor.name);
    coder.code(tensor, choice.coding, choice.style, result);
  }
  return result;
}

}  // namespace tandem::model::testing
