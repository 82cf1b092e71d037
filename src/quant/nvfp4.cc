// E2M1 codes, runs of groups, and the two dialects of checkpoints; nvfp4.h says what is where.
#include "quant/nvfp4.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "quant/fp8.h"

namespace tandem::quant {
namespace {

constexpr int64_t largest_nvfp4_dimension = int64_t{1} << 31;

void check_group_scales(std::string_view prefix, const TensorFacts& scales) {
  const auto bad = std::find_if(scales.data.begin(), scales.data.end(),
                                [](std::byte code) { return static_cast<uint8_t>(code) >= 0x7f; });
  if (bad == scales.data.end()) return;
  const auto code = static_cast<uint8_t>(*bad);
  refuse_tensor(prefix, scales.name,
                std::string((code & 0x7f) == 0x7f ? "NaN" : "a negative scale") + " at element " +
                    std::to_string(bad - scales.data.begin()),
                "scales that are numbers and not negative");
}

float read_global_scale(std::string_view prefix, const TensorFacts& tensor, Nvfp4Dialect dialect) {
  check_scalar(prefix, tensor, "F32");
  float stored;
  std::memcpy(&stored, tensor.data.data(), 4);
  const float outer = dialect == Nvfp4Dialect::modelopt ? stored : 1.0f / stored;
  if (!std::isfinite(stored) || stored <= 0 || !std::isfinite(outer) || outer <= 0)
    refuse_tensor(prefix, tensor.name, "value " + std::to_string(stored), "a finite scale above 0");
  return outer;
}

struct Names {
  std::string_view weight, global, input;
};

Names names_of(Nvfp4Dialect dialect) {
  return dialect == Nvfp4Dialect::modelopt ? Names{"weight", "weight_scale_2", "input_scale"}
                                           : Names{"weight_packed", "weight_global_scale", "input_global_scale"};
}

// The dialect whose names occur; a name of the other one, or of none, is refused.
Nvfp4Dialect dialect_of(std::string_view prefix, std::span<const TensorFacts> tensors) {
  const auto has = [&](std::string_view name) { return find_tensor(prefix, tensors, name) != nullptr; };
  const auto dialect = has("weight_packed") || (has("weight_global_scale") && !has("weight"))
                           ? Nvfp4Dialect::compressed_tensors
                           : Nvfp4Dialect::modelopt;
  const Names names = names_of(dialect);
  for (const TensorFacts& tensor : tensors) {
    if (tensor.name == "bias" || tensor.name == "weight_scale" || tensor.name == names.weight ||
        tensor.name == names.global || tensor.name == names.input)
      continue;
    refuse_tensor(
        prefix, tensor.name, "a tensor that NVFP4 weights of " + std::string(name_of(dialect)) + " do not have",
        std::string(names.weight) + ", weight_scale, " + std::string(names.global) + " or " + std::string(names.input));
  }
  return dialect;
}

}  // namespace

const float e2m1_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

uint8_t e2m1_encode(float x) {
  const float a = std::abs(x);
  // Borders in the middle between two values; a tie goes to the even code.
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  if (std::isnan(x)) return 7;
  return static_cast<uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

std::string_view name_of(Nvfp4Dialect dialect) {
  return dialect == Nvfp4Dialect::modelopt ? "ModelOpt" : "compressed-tensors";
}

bool is_nvfp4(std::span<const TensorFacts> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const TensorFacts& tensor) {
    return tensor.name == "weight_packed" || tensor.name == "weight_scale_2" || tensor.name == "weight_global_scale" ||
           (tensor.name == "weight" && tensor.dtype == "U8");
  });
}

Nvfp4Matrix read_nvfp4(std::string_view prefix, std::span<const TensorFacts> tensors, int64_t rows, int64_t columns,
                       NibbleOrder order) {
  const Nvfp4Dialect dialect = dialect_of(prefix, tensors);
  const Names names = names_of(dialect);
  if (rows < 1 || rows > largest_nvfp4_dimension || columns < 1 || columns > largest_nvfp4_dimension ||
      columns % nvfp4_group != 0)
    refuse_tensor(prefix, names.weight, "a layer of [" + std::to_string(rows) + ", " + std::to_string(columns) + "]",
                  "at most 2^31 of each and inputs that are a multiple of 16");
  const auto required = [&](std::string_view name) -> const TensorFacts& {
    const TensorFacts* tensor = find_tensor(prefix, tensors, name);
    if (tensor == nullptr)
      refuse_tensor(prefix, name, "missing", "a tensor of NVFP4 weights of " + std::string(name_of(dialect)));
    return *tensor;
  };
  const TensorFacts &codes = required(names.weight), &scales = required("weight_scale");
  check_tensor(prefix, codes, "U8", std::array{rows, columns / 2});
  check_tensor(prefix, scales, "F8_E4M3", std::array{rows, columns / nvfp4_group});
  check_group_scales(prefix, scales);
  if (const TensorFacts* input = find_tensor(prefix, tensors, names.input)) check_scalar(prefix, *input, "F32");
  Nvfp4Matrix m;
  m.codes = codes.data.data();
  m.scales = scales.data.data();
  m.outer_scale = read_global_scale(prefix, required(names.global), dialect);
  m.rows = rows;
  m.columns = columns;
  m.dialect = dialect;
  m.order = order;
  return m;
}

void nvfp4_decode_rows(const Nvfp4Matrix& m, int64_t first, int64_t count, float* out) {
  for (int64_t row = first; row < first + count; ++row, out += m.columns)
    nvfp4_decode_run(m.codes + row * (m.columns / 2), m.scales + row * (m.columns / nvfp4_group), m.outer_scale,
                     m.columns, m.order, out);
}

Nvfp4Data nvfp4_encode(const float* w, int64_t rows, int64_t columns) {
  if (rows < 0 || columns < 0 || columns % nvfp4_group != 0)
    throw Error(ErrorCode::internal, "NVFP4 encoder", std::to_string(columns) + " columns", "a multiple of 16");
  float largest = 0;
  for (int64_t row = 0; row < rows; ++row)
    largest = std::max(largest, absolute_max(w + row * columns, columns, "NVFP4 weight row"));
  Nvfp4Data data;
  data.outer_scale = largest == 0 ? 1.0f : scale_for(largest, nvfp4_range);
  data.codes.resize(rows * columns / 2);
  data.scales.resize(rows * columns / nvfp4_group);
  for (int64_t row = 0; row < rows; ++row)
    nvfp4_encode_run(w + row * columns, columns, data.outer_scale, data.codes.data() + row * columns / 2,
                     data.scales.data() + row * columns / nvfp4_group);
  return data;
}

void nvfp4_encode_run(const float* x, int64_t n, float outer_scale, std::byte* codes, std::byte* scales) {
  for (int64_t first = 0; first < n; first += nvfp4_group) {
    const int64_t count = std::min(n - first, nvfp4_group);
    float largest = 0;
    for (int64_t i = first; i < first + count; ++i) largest = std::max(largest, std::abs(x[i]));
    const uint8_t scale = e4m3_encode(largest / (e2m1_max * outer_scale));
    scales[first / nvfp4_group] = std::byte{scale};
    const float step = e4m3_values[scale] * outer_scale;
    uint8_t group[nvfp4_group] = {};
    if (scale != 0)
      for (int64_t i = 0; i < count; ++i) group[i] = e2m1_encode(x[first + i] / step);
    for (int64_t i = 0; i < count; i += 2)
      codes[(first + i) / 2] = static_cast<std::byte>(group[i] | (i + 1 < count ? group[i + 1] << 4 : 0));
  }
}

void nvfp4_decode_run(const std::byte* codes, const std::byte* scales, float outer_scale, int64_t n, NibbleOrder order,
                      float* out) {
  const int even = order == NibbleOrder::low_first ? 0 : 4, odd = 4 - even;
  for (int64_t first = 0; first < n; first += nvfp4_group) {
    const float scale = e4m3_values[static_cast<uint8_t>(scales[first / nvfp4_group])];
    const int64_t last = std::min(n, first + nvfp4_group);
    for (int64_t i = first; i < last; i += 2) {
      const int pair = static_cast<int>(codes[i / 2]);
      out[i] = e2m1_values[pair >> even & 15] * scale * outer_scale;
      if (i + 1 < last) out[i + 1] = e2m1_values[pair >> odd & 15] * scale * outer_scale;
    }
  }
}

}  // namespace tandem::quant
