// Names, shapes and dtypes of stored weights, and the conversion of small ones to fp32.
#include "model/weight_source.h"

#include <fmt/ranges.h>

#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "model/json_reader.h"
#include "quant/fp8.h"

namespace tandem::model {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

template <typename T>
T read_value(const std::byte* data, size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction · 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t widened = exponent == 0x1f ? 0xffu : exponent + 112;
  return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
}

// The part of `text` after `start`, if it starts so.
std::optional<std::string_view> after(std::string_view text, std::string_view start) {
  if (!text.starts_with(start)) return std::nullopt;
  return text.substr(start.size());
}

struct LayerName {
  std::string layer;  // "layers.3."
  std::string_view rest;
};

std::optional<LayerName> split_layer(std::string_view name) {
  const auto tail = after(name, "layers.");
  if (!tail) return std::nullopt;
  const size_t dot = tail->find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return LayerName{fmt::format("layers.{}.", tail->substr(0, dot)), tail->substr(dot + 1)};
}

// The name that transformers gives to a tensor it keeps as it is, or nothing if it keeps the hub's name.
std::optional<std::string> renamed(std::string_view name) {
  const auto split = split_layer(name);
  if (!split) return std::nullopt;
  const auto& [layer, rest] = *split;
  for (const char* moved : {"f_a_proj.weight", "f_b_proj.weight", "dt_bias", "A_log"}) {
    if (rest == fmt::format("self_attn.{}", moved)) return fmt::format("{}self_attn.forget_gate.{}", layer, moved);
  }
  if (const auto part = after(rest, "hc_attn_")) return fmt::format("{}attn_hc.{}", layer, *part);
  if (const auto part = after(rest, "hc_ffn_")) return fmt::format("{}ffn_hc.{}", layer, *part);
  return std::nullopt;
}

// The weight as a part of a larger tensor, if transformers stores it so; `tensor` is still to be found.
struct TensorPart {
  std::string name;
  StoredWeight stored;
};

std::optional<TensorPart> conv_part(const WeightSpec& spec, const LayerName& split) {
  constexpr std::string_view channels = "qkv";
  for (size_t i = 0; i < channels.size(); ++i) {
    if (split.rest != fmt::format("self_attn.{}_conv1d.weight", channels[i])) continue;
    const int64_t width = spec.shape[0];
    return TensorPart{split.layer + "self_attn.conv1d.weight",
                      {nullptr, {3 * width, 1, spec.shape[2]}, 0, static_cast<int64_t>(i) * width}};
  }
  return std::nullopt;
}

std::optional<TensorPart> expert_part(const WeightSpec& spec, const LayerName& split, int64_t experts) {
  const auto tail = after(split.rest, "mlp.experts.");
  if (!tail) return std::nullopt;
  int64_t expert = 0;
  const auto [end, error] = std::from_chars(tail->data(), tail->data() + tail->size(), expert);
  if (error != std::errc()) return std::nullopt;
  const std::string_view which = tail->substr(static_cast<size_t>(end - tail->data()));
  const int64_t rows = spec.shape[0], columns = spec.shape[1];
  const std::string stacked = split.layer + "mlp.experts.";
  if (which == ".down_proj.weight") {
    return TensorPart{stacked + "down_proj", {nullptr, {experts, rows, columns}, expert, 0}};
  }
  const int64_t first_row = which == ".gate_proj.weight" ? 0 : rows;
  return TensorPart{stacked + "gate_up_proj", {nullptr, {experts, 2 * rows, columns}, expert, first_row}};
}

[[noreturn]] void wrong(const Tensor& tensor, std::string found, std::string expected) {
  throw Error(ErrorCode::bad_file, tensor.file + ": tensor " + printable(tensor.name), std::move(found),
              std::move(expected));
}

// Where the values of `stored` begin, as an index of elements: rows of a slice have `row_elements` each.
int64_t first_element(const StoredWeight& stored, int64_t row_elements) {
  const int64_t slice_rows = stored.stored_shape[stored.stored_shape.size() == 3 ? 1 : 0];
  return (stored.slice * slice_rows + stored.first_row) * row_elements;
}

}  // namespace

WeightSource::WeightSource(const Checkpoint& checkpoint, const Shape& shape, WeightOptions options)
    : checkpoint_(checkpoint),
      options_(options),
      widths_(checkpoint.folder()),
      experts_(shape.n_routed_experts),
      prefix_("model.language_model.") {
  for (const auto& [prefix, head] : {std::pair{"model.language_model.", ""}, std::pair{"model.", ""},
                                     std::pair{"language_model.model.", "language_model."}}) {
    if (checkpoint.find(fmt::format("{}embed_tokens.weight", prefix)) != nullptr) {
      prefix_ = prefix;
      head_prefix_ = head;
      break;
    }
  }
}

bool WeightSource::has_layer(int64_t layer) const {
  const std::string start = fmt::format("{}layers.{}.", prefix_, layer);
  for (const Tensor* tensor : checkpoint_.tensors()) {
    if (tensor->name.starts_with(start)) return true;
  }
  return false;
}

std::string WeightSource::full_name(const WeightSpec& spec) const {
  return (spec.component == Component::lm_head ? head_prefix_ : prefix_) + spec.name;
}

StoredWeight WeightSource::locate(const WeightSpec& spec) const {
  StoredWeight stored{checkpoint_.find(full_name(spec)), spec.shape, 0, 0};
  if (stored.tensor != nullptr) return stored;
  if (const auto name = renamed(spec.name)) stored.tensor = checkpoint_.find(prefix_ + *name);
  if (stored.tensor != nullptr) return stored;
  if (const auto split = split_layer(spec.name)) {
    std::optional<TensorPart> part = conv_part(spec, *split);
    if (!part) part = expert_part(spec, *split, experts_);
    if (part) {
      part->stored.tensor = checkpoint_.find(prefix_ + part->name);
      if (part->stored.tensor != nullptr) return part->stored;
    }
  }
  return stored;
}

StoredWeight WeightSource::checked(const WeightSpec& spec) const {
  StoredWeight stored = locate(spec);
  if (stored.tensor == nullptr) {
    throw Error(ErrorCode::bad_file, "tensor " + full_name(spec), "missing",
                "it in the checkpoint with shape " + shape_text(spec.shape));
  }
  if (stored.tensor->shape != stored.stored_shape) {
    wrong(*stored.tensor, "shape " + shape_text(stored.tensor->shape), shape_text(stored.stored_shape));
  }
  return stored;
}

WeightSource::Module WeightSource::module_of(const WeightSpec& spec) const {
  constexpr std::string_view ending = ".weight";
  if (!spec.name.ends_with(ending) || spec.shape.size() != 2) return {};
  std::vector<std::string> names = {full_name(spec)};
  if (const auto name = renamed(spec.name)) names.push_back(prefix_ + *name);
  for (std::string& name : names) {
    name.resize(name.size() - ending.size());
    const std::span<const Tensor> tensors = checkpoint_.starting_with(name + '.');
    if (tensors.empty()) continue;
    const LinearForm form = form_of(name, tensors);
    if (form != LinearForm::plain) return {form, name, tensors};
  }
  return {};
}

const Tensor* WeightSource::scales_of(const Tensor& tensor) const {
  const Tensor* const scales = checkpoint_.find(tensor.name + "_scale_inv");
  return scales != nullptr ? scales : checkpoint_.find(tensor.name + "_scale");
}

Matrix WeightSource::matrix(const WeightSpec& spec, std::vector<std::string>* warnings) const {
  if (const Module module = module_of(spec); module.form != LinearForm::plain) {
    Matrix matrix = read_coded(module.form, module.name, module.tensors, spec, options_.nibble_order, warnings);
    if (module.form == LinearForm::exl3)
      widths_.check(module.name, spec.layer, spec.component == Component::routed_experts, matrix.exl3.bits);
    return matrix;
  }
  const StoredWeight stored = checked(spec);
  const Tensor& tensor = *stored.tensor;
  Matrix matrix;
  matrix.out_features = spec.shape[0];
  matrix.in_features = spec.shape[1];
  matrix.leaf_columns = spec.leaf_columns;
  matrix.data = tensor.data.data() + first_element(stored, matrix.in_features) * dtype_bytes(tensor.dtype);
  switch (tensor.dtype) {
    case DType::bf16: matrix.format = ops::WeightFormat::bf16; break;
    case DType::f32: matrix.format = ops::WeightFormat::f32; break;
    case DType::f8_e4m3: set_block_scales(stored, matrix); break;
    default:
      wrong(tensor, fmt::format("dtype {}", dtype_name(tensor.dtype)),
            "BF16, F32, F8_E4M3 with block scales, or the tensors of NVFP4 or EXL3");
  }
  return matrix;
}

// A scale covers a block of 128x128 codes of one slice; the blocks are counted from the slice's first row, not the
// view's.
void WeightSource::set_block_scales(const StoredWeight& stored, Matrix& matrix) const {
  const Tensor* const scales = scales_of(*stored.tensor);
  if (scales == nullptr) {
    throw Error(ErrorCode::bad_file, "tensor " + printable(stored.tensor->name + "_scale_inv"), "missing",
                "the block scales of the F8_E4M3 weight");
  }
  const Tensor* const other = checkpoint_.find(stored.tensor->name + "_scale");
  if (other != nullptr && other != scales) wrong(*other, "present beside " + scales->name, "one tensor of scales");
  const size_t dot = scales->name.rfind('.');
  const std::string prefix = dot == std::string::npos ? scales->file : scales->name.substr(0, dot);
  const quant::Fp8Scales read = quant::read_fp8_scales(
      scales->file + ": tensor " + printable(prefix),
      {scales->name.substr(dot + 1), dtype_name(scales->dtype), scales->shape, scales->data}, stored.stored_shape);
  matrix.format = ops::WeightFormat::fp8_block;
  matrix.scale_format = read.format;
  matrix.block_scales = read.data + stored.slice * read.matrix * quant::fp8_scale_bytes(read.format);
  matrix.block_row = stored.first_row;
}

void WeightSource::append_values(const WeightSpec& spec, Vector& target) const {
  const StoredWeight stored = checked(spec);
  const Tensor& tensor = *stored.tensor;
  int64_t count = 1;
  for (const int64_t dimension : spec.shape) count *= dimension;
  const int64_t first = stored.first_row * (count / spec.shape[0]);
  target.reserve(target.size() + static_cast<size_t>(count));
  for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(first + count); ++i) {
    switch (tensor.dtype) {
      case DType::f32: target.push_back(read_value<float>(tensor.data.data(), i)); break;
      case DType::bf16: target.push_back(from_bf16(read_value<uint16_t>(tensor.data.data(), i))); break;
      case DType::f16: target.push_back(from_f16(read_value<uint16_t>(tensor.data.data(), i))); break;
      default: wrong(tensor, fmt::format("dtype {}", dtype_name(tensor.dtype)), "F32, BF16 or F16");
    }
  }
}

}  // namespace tandem::model
