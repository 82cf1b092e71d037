// Walks the loader's own list of weights, so that a converted model has every name and shape that the loader asks for.
#include "eval/quantize_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <span>
#include <utility>

#include "base/error.h"
#include "model/weight_source.h"
#include "quant/exl3_codebook.h"
#include "quant/fp8.h"
#include "quant/nvfp4.h"

namespace tandem::eval {
namespace {

using model::Component;
using model::DType;
using ops::WeightFormat;

constexpr std::string_view weight_ending = ".weight";

int64_t padded_to_blocks(int64_t size) { return (size + ops::exl3_block - 1) / ops::exl3_block * ops::exl3_block; }

std::string module_name(const std::string& weight) {
  return weight.ends_with(weight_ending) ? weight.substr(0, weight.size() - weight_ending.size()) : weight;
}

// As other programs name a group of modules: all experts of a layer at once.
std::string listed_name(const std::string& weight) {
  constexpr std::string_view experts = ".mlp.experts";
  const size_t at = weight.find(experts);
  return at == std::string::npos ? module_name(weight) : weight.substr(0, at + experts.size());
}

class Planner final : public model::WeightVisitor {
 public:
  Planner(const model::Checkpoint& checkpoint, const model::WeightSource& source, const QuantizeOptions& options)
      : checkpoint_(checkpoint), source_(source), options_(options) {}

  void matrix(const model::WeightSpec& spec, model::Matrix& target) override {
    const std::string name = source_.full_name(spec);
    target = source_.matrix(spec);
    if (target.format != WeightFormat::bf16 && target.format != WeightFormat::f32) refuse_coded(name);
    const Coding coding = coding_of(spec);
    if (coding == Coding::keep) {
      plan_.kept_modules.insert(listed_name(name));
      return;
    }
    plan_.converted_modules.emplace(listed_name(name), coding);
    ConvertedWeight weight{name, spec.component, coding, target, {}, spec.layer, bits_of(spec), spec.name};
    if (coding == Coding::exl3) check_exl3(name, spec);
    weight.tensors = coding == Coding::exl3  ? exl3_tensors(weight, weight.bits, options_.exl3)
                     : coding == Coding::fp8 ? fp8_tensors(name, spec)
                                             : nvfp4_tensors(name, spec);
    for (const model::TensorHeader& tensor : weight.tensors)
      if (tensor.name != name && checkpoint_.find(tensor.name) != nullptr) refuse_coded(tensor.name);
    plan_.converted[source_.locate(spec).tensor->name].push_back(std::move(weight));
  }
  void vector(const model::WeightSpec& spec, model::Vector& target) override { source_.append_values(spec, target); }

  ConversionPlan take() { return std::move(plan_); }

 private:
  Coding coding_of(const model::WeightSpec& spec) const {
    const auto is = [&spec](const char* ending) { return spec.name.ends_with(ending); };
    const bool is_exl3 = options_.dense == Coding::exl3;
    switch (spec.component) {
      case Component::routed_experts: return options_.experts;
      case Component::shared_expert:
        return options_.experts == Coding::exl3 && options_.exl3.layout == Exl3Layout::tr3 ? Coding::keep
                                                                                           : options_.experts;
      case Component::dense_mlp: return options_.dense;
      case Component::mla: return is("kv_b_proj.weight") ? Coding::keep : options_.dense;
      case Component::kda: {
        const bool is_large =
            is(".q_proj.weight") || is(".k_proj.weight") || is(".v_proj.weight") || is(".o_proj.weight");
        return is_exl3 && is_large ? Coding::exl3 : Coding::keep;
      }
      case Component::lm_head: return options_.head;
      default: return Coding::keep;
    }
  }

  int bits_of(const model::WeightSpec& spec) const {
    if (coding_of(spec) != Coding::exl3) return 0;
    switch (spec.component) {
      case Component::routed_experts:
      case Component::shared_expert: return options_.exl3.expert_bits;
      case Component::lm_head: return options_.exl3.head_bits;
      default: return options_.exl3.dense_bits;
    }
  }

  static void check_exl3(const std::string& name, const model::WeightSpec& spec) {
    if (spec.leaf_columns % ops::exl3_block != 0 && spec.leaf_columns != spec.shape[1])
      throw Error(ErrorCode::usage, "exl3",
                  fmt::format("{} has {} inputs, of which {} are summed first", model::printable(name), spec.shape[1],
                              spec.leaf_columns),
                  fmt::format("a multiple of {}, or fp8 or keep for this class", ops::exl3_block));
  }

  [[noreturn]] static void refuse_coded(const std::string& name) {
    throw Error(ErrorCode::bad_file, "tensor " + model::printable(name), "quantised already",
                "a checkpoint in BF16 or F32");
  }

  static std::vector<model::TensorHeader> fp8_tensors(const std::string& name, const model::WeightSpec& spec) {
    const int64_t out = spec.shape[0], in = spec.shape[1];
    return {{name + "_scale_inv", DType::f32, {quant::fp8_blocks(out), quant::fp8_blocks(in)}},
            {name, DType::f8_e4m3, {out, in}}};
  }

  static std::vector<model::TensorHeader> nvfp4_tensors(const std::string& name, const model::WeightSpec& spec) {
    const int64_t out = spec.shape[0], in = spec.shape[1];
    if (in % quant::nvfp4_group != 0 || spec.leaf_columns % quant::nvfp4_group != 0)
      throw Error(
          ErrorCode::usage, "--experts nvfp4",
          fmt::format("{} has {} inputs, of which {} are summed first", model::printable(name), in, spec.leaf_columns),
          fmt::format("multiples of {}, or fp8", quant::nvfp4_group));
    return {{name + "_scale_2", DType::f32, {}},
            {name + "_scale", DType::f8_e4m3, {out, in / quant::nvfp4_group}},
            {name, DType::u8, {out, in / 2}}};
  }

  const model::Checkpoint& checkpoint_;
  const model::WeightSource& source_;
  const QuantizeOptions& options_;
  ConversionPlan plan_;
};

}  // namespace

std::vector<float> values_of(const ConvertedWeight& weight) {
  const model::Matrix& matrix = weight.matrix;
  std::vector<float> values(static_cast<size_t>(weight.parameters()));
  if (matrix.format == WeightFormat::f32) {
    std::memcpy(values.data(), matrix.data, values.size() * sizeof(float));
  } else {
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t half;
      std::memcpy(&half, matrix.data + i * sizeof half, sizeof half);
      values[i] = std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
    }
  }
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      throw Error(ErrorCode::bad_file, "tensor " + model::printable(weight.name),
                  fmt::format("{} in row {}, column {}", values[i], i / static_cast<size_t>(matrix.in_features),
                              i % static_cast<size_t>(matrix.in_features)),
                  "finite values");
  return values;
}

int64_t ConvertedWeight::source_bytes() const {
  return parameters() * model::dtype_bytes(matrix.format == WeightFormat::f32 ? DType::f32 : DType::bf16);
}

int64_t ConvertedWeight::bytes() const {
  int64_t sum = 0;
  for (const model::TensorHeader& tensor : tensors) sum += tensor.bytes();
  return sum;
}

std::string ConvertedWeight::module() const { return module_name(name); }
int64_t ConvertedWeight::padded_in() const { return padded_to_blocks(matrix.in_features); }
int64_t ConvertedWeight::padded_out() const { return padded_to_blocks(matrix.out_features); }

std::vector<model::TensorHeader> exl3_tensors(const ConvertedWeight& weight, int bits, const Exl3Options& options) {
  constexpr int64_t tile = 16;
  const std::string module = weight.module();
  const int64_t in = weight.padded_in(), out = weight.padded_out();
  std::vector<model::TensorHeader> tensors = {{module + ".trellis", DType::i16, {in / tile, out / tile, tile * bits}},
                                              {module + ".suh", DType::f16, {in}},
                                              {module + ".svh", DType::f16, {out}}};
  if (options.codebook != quant::Exl3Codebook::three_inst) {
    // The shapes of the marker that exllamav3 and the published TR3 checkpoint write.
    const std::vector<int64_t> shape =
        options.layout == Exl3Layout::tr3 ? std::vector<int64_t>{1} : std::vector<int64_t>{};
    tensors.push_back({fmt::format("{}.{}", module, name_of(options.codebook)), DType::i32, shape});
  }
  return tensors;
}

ConversionPlan plan_conversion(const model::Checkpoint& checkpoint, const model::Shape& shape,
                               const QuantizeOptions& options) {
  const model::WeightSource source(checkpoint, shape);
  Planner planner(checkpoint, source, options);
  model::TextWeights weights;
  model::visit_main_weights(shape, weights, planner);
  if (shape.num_nextn_predict_layers == 1 && source.has_layer(shape.num_hidden_layers))
    model::visit_mtp_weights(shape, weights, planner);
  ConversionPlan plan = planner.take();
  for (const char* vision : {"model.visual", "visual"})
    if (!checkpoint.starting_with(std::string(vision) + '.').empty()) plan.kept_modules.insert(vision);
  if (plan.converted.empty())
    throw Error(ErrorCode::usage, "--experts, --dense", "nothing to convert",
                "fp8, nvfp4 or exl3:N for weights that are there");
  return plan;
}

std::vector<std::byte> encoded(const ConvertedWeight& weight) {
  const int64_t rows = weight.matrix.out_features, columns = weight.matrix.in_features;
  const std::vector<float> values = values_of(weight);
  std::vector<std::byte> bytes;
  const auto append = [&bytes](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  if (weight.coding == Coding::nvfp4) {
    const quant::Nvfp4Data data = quant::nvfp4_encode(values.data(), rows, columns);
    append(std::as_bytes(std::span(&data.outer_scale, 1)));
    append(data.scales);
    append(data.codes);
    return bytes;
  }
  std::vector<std::byte> codes(values.size());
  std::vector<float> scales(static_cast<size_t>(quant::fp8_blocks(rows) * quant::fp8_blocks(columns)));
  quant::fp8_block_encode(values.data(), rows, columns, codes.data(), scales.data());
  append(std::as_bytes(std::span(scales)));
  append(codes);
  return bytes;
}

model::Matrix coded_matrix(const ConvertedWeight& weight, std::span<const std::byte> bytes,
                           quant::Exl3Codebook codebook) {
  model::Matrix matrix;
  matrix.out_features = weight.matrix.out_features;
  matrix.in_features = weight.matrix.in_features;
  matrix.leaf_columns = weight.matrix.leaf_columns;
  std::vector<const std::byte*> parts;  // of weight.tensors
  const std::byte* at = bytes.data();
  for (const model::TensorHeader& tensor : weight.tensors) {
    parts.push_back(at);
    at += tensor.bytes();
  }
  switch (weight.coding) {
    case Coding::keep: return weight.matrix;
    case Coding::fp8:
      matrix.format = WeightFormat::fp8_block;
      matrix.block_scales = parts[0];
      matrix.data = parts[1];
      return matrix;
    case Coding::nvfp4:
      matrix.format = WeightFormat::nvfp4;
      std::memcpy(&matrix.outer_scale, parts[0], sizeof matrix.outer_scale);
      matrix.block_scales = parts[1];
      matrix.data = parts[2];
      return matrix;
    case Coding::exl3:
      matrix.format = WeightFormat::exl3;
      matrix.data = parts[0];
      matrix.exl3.bits = static_cast<int>(weight.tensors[0].shape[2] / 16);
      matrix.exl3.codebook = codebook;
      matrix.exl3.tile_stride = weight.padded_out() / 16;
      matrix.exl3.suh = parts[1];
      matrix.exl3.svh = parts[2];
      quant::exl3_values(codebook);  // a step must not build it
      return matrix;
  }
  return matrix;
}

void encode_in_order(device::Threads& threads, std::span<const ConvertedWeight* const> weights,
                     const WriteEncoded& write) {
  constexpr int64_t most_bytes = int64_t{1} << 30;
  const size_t most_weights = 8 * static_cast<size_t>(threads.count());  // so that threads seldom wait for the last one
  while (!weights.empty()) {
    size_t count = 1;
    for (int64_t bytes = weights[0]->bytes(); count < std::min(most_weights, weights.size()); ++count)
      if ((bytes += weights[count]->bytes()) > most_bytes) break;
    std::vector<std::vector<std::byte>> results(count);
    std::vector<std::exception_ptr> failures(count);
    threads.run(static_cast<int64_t>(count), [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      try {
        results[at] = encoded(*weights[at]);
      } catch (...) {
        failures[at] = std::current_exception();  // not the first in time: which that is differs from run to run
      }
    });
    for (size_t i = 0; i < count; ++i) {
      if (failures[i]) std::rethrow_exception(failures[i]);
      write(*weights[i], results[i]);
      results[i] = {};
    }
    weights = weights.subspan(count);
  }
}

}  // namespace tandem::eval
