// From the tensors of a layer to an Exl3Matrix. Trellis bits cannot be invalid, so all defence is in names, shapes,
// vectors and markers (spec/quantization.md 7).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "quant/exl3_matrix.h"
#include "quant/exl3_tile.h"
#include "quant/half.h"

namespace tandem::quant {
namespace {

constexpr int64_t block = 128;
constexpr int64_t largest_dimension = int64_t{1} << 24;  // keeps every product of sizes far from 2^63

constexpr std::string_view known_names[] = {"trellis", "suh", "svh", "su", "sv", "mcg", "mul1", "bias"};

struct Reader {
  std::string_view prefix;
  std::span<const TensorFacts> tensors;
  int64_t in = 0, out = 0;  // stored
  std::vector<std::string>* warnings;

  const TensorFacts* find(std::string_view name) const { return find_tensor(prefix, tensors, name); }
  void warn(std::string_view name, const std::string& text) const {
    if (warnings != nullptr) warnings->push_back(std::string(prefix) + "." + std::string(name) + ": " + text);
  }

  void check_names() const;
  bool marker(std::string_view name, uint32_t value) const;
  Exl3Codebook codebook() const;
  int bits(const TensorFacts& trellis) const;
  void check_vector(const TensorFacts& vector, int64_t length) const;
  void read_scales(Exl3Matrix* m) const;
};

void Reader::check_names() const {
  for (const TensorFacts& tensor : tensors) {
    if (tensor.name == "scale") refuse_tensor(prefix, "scale", "an obsolete EXL3 tensor", "suh and svh");
    if (std::find(std::begin(known_names), std::end(known_names), tensor.name) == std::end(known_names))
      refuse_tensor(prefix, tensor.name, "an unknown tensor beside an EXL3 trellis",
                    "trellis, suh, svh, su, sv, mcg, mul1 or bias");
  }
}

bool Reader::marker(std::string_view name, uint32_t value) const {
  const TensorFacts* tensor = find(name);
  if (tensor == nullptr) return false;
  check_scalar(prefix, *tensor, "I32 or U32");
  uint32_t found;
  std::memcpy(&found, tensor->data.data(), 4);
  if (found != value) refuse_tensor(prefix, name, "value " + std::to_string(found), std::to_string(value));
  return true;
}

Exl3Codebook Reader::codebook() const {
  const bool mcg = marker("mcg", mcg_multiplier), mul1 = marker("mul1", mul1_multiplier);
  if (mcg && mul1) refuse_tensor(prefix, "mul1", "both markers mcg and mul1", "at most one");
  return mcg ? Exl3Codebook::mcg : mul1 ? Exl3Codebook::mul1 : Exl3Codebook::three_inst;
}

int Reader::bits(const TensorFacts& trellis) const {
  const std::string expected = fmt::format("[{}, {}, 16·b] with b = 1 to 8", in / exl3_tile, out / exl3_tile);
  if (trellis.shape.size() != 3 || trellis.shape[0] != in / exl3_tile || trellis.shape[1] != out / exl3_tile)
    refuse_tensor(prefix, "trellis", "shape " + shape_text(trellis.shape), expected);
  const int64_t units = trellis.shape[2];
  if (units == 24 || units == 40 || units == 56)
    refuse_tensor(prefix, "trellis", "half-integer width " + std::to_string(units / 16) + ".5",
                  "1 to 8 whole bits a weight: half-integer widths are not supported, no published file has been "
                  "checked against their description");
  if (units < 16 || units > 16 * exl3_max_bits || units % 16 != 0)
    refuse_tensor(prefix, "trellis", "shape " + shape_text(trellis.shape), expected);
  check_tensor(prefix, trellis, "I16 or U16", trellis.shape);
  return static_cast<int>(units / 16);
}

void Reader::check_vector(const TensorFacts& vector, int64_t length) const {
  check_tensor(prefix, vector, "F16", std::array{length});
  float smallest = 0, largest = 0;
  int64_t zeros = 0;
  for (int64_t i = 0; i < length; ++i) {
    uint16_t bits;
    std::memcpy(&bits, vector.data.data() + 2 * i, 2);
    const float magnitude = std::abs(half_to_float(bits));
    if (!std::isfinite(magnitude) || magnitude > 6.5e4f)
      refuse_tensor(prefix, vector.name, std::to_string(half_to_float(bits)) + " at " + std::to_string(i),
                    "finite values of at most 65000");
    if (magnitude == 0) {
      ++zeros;
      continue;
    }
    smallest = smallest == 0 ? magnitude : std::min(smallest, magnitude);
    largest = std::max(largest, magnitude);
  }
  if (vector.name == "suh" && zeros > 0) warn("suh", std::to_string(zeros) + " inputs have scale 0");
  if (largest > 1e6f * smallest)
    warn(vector.name, "scales from " + std::to_string(smallest) + " to " + std::to_string(largest));
}

void Reader::read_scales(Exl3Matrix* m) const {
  const TensorFacts *suh = find("suh"), *svh = find("svh"), *su = find("su"), *sv = find("sv");
  for (const auto& [scales, signs] : {std::pair{suh, su}, std::pair{svh, sv}})
    if (scales != nullptr && signs != nullptr)
      refuse_tensor(prefix, signs->name, "both " + scales->name + " and the legacy signs " + signs->name, "one form");
  if (suh == nullptr && su == nullptr) refuse_tensor(prefix, "suh", "missing", "suh, or the legacy signs su");
  if (svh == nullptr && sv == nullptr) refuse_tensor(prefix, "svh", "missing", "svh, or the legacy signs sv");
  if (suh != nullptr) {
    check_vector(*suh, in);
    m->suh = suh->data;
  } else {
    check_tensor(prefix, *su, "I16", std::array{in / 16});
    m->su = su->data;
  }
  if (svh != nullptr) {
    check_vector(*svh, out);
    m->svh = svh->data;
  } else {
    check_tensor(prefix, *sv, "I16", std::array{out / 16});
    m->sv = sv->data;
  }
}

}  // namespace

Exl3Matrix read_exl3(std::string_view prefix, std::span<const TensorFacts> tensors, int64_t in_features,
                     int64_t out_features, std::vector<std::string>* warnings) {
  for (const int64_t size : {in_features, out_features})
    if (size < 1 || size > largest_dimension)
      refuse_tensor(
          prefix, "trellis",
          "a layer of " + std::to_string(in_features) + " inputs and " + std::to_string(out_features) + " outputs",
          "1 to 16777216 of each");
  const auto padded = [](int64_t size) { return (size + block - 1) / block * block; };
  const Reader reader{prefix, tensors, padded(in_features), padded(out_features), warnings};
  reader.check_names();
  const TensorFacts* trellis = reader.find("trellis");
  if (trellis == nullptr) refuse_tensor(prefix, "trellis", "missing", "the packed weights of an EXL3 layer");
  Exl3Matrix m;
  m.in_features = reader.in;
  m.out_features = reader.out;
  m.bits = reader.bits(*trellis);
  m.trellis = trellis->data;
  m.codebook = reader.codebook();
  reader.read_scales(&m);
  if (const TensorFacts* bias = reader.find("bias")) {
    reader.check_vector(*bias, reader.out);
    m.bias = bias->data;
  }
  return m;
}

void check_exl3_setting(std::string_view file, std::string_view key, std::string_view value) {
  struct Known {
    std::string_view key;
    std::vector<std::string_view> values;
  };
  static const std::vector<Known> known = {
      {"quant_method", {"exl3"}}, {"codebook", {"3inst", "mcg", "mul1"}}, {"scope", {"glm53_routed_experts_only"}},
      {"tile_order", {}},       // the standard order has no name; "sm70_colmajor" exists and would decode to garbage
      {"rotation_layout", {}},  // rank-sliced files of GLM-5.2
      {"tensor_schema", {}},
  };
  for (const auto& [name, values] : known) {
    if (name != key || std::find(values.begin(), values.end(), value) != values.end()) continue;
    std::string expected = values.empty() ? "no such key" : "";
    for (const std::string_view allowed : values) expected += (expected.empty() ? "" : " or ") + std::string(allowed);
    throw Error(ErrorCode::bad_file, std::string(file) + ": quantization_config." + std::string(key),
                "\"" + std::string(value) + "\"", expected);
  }
}

void check_exl3_stated_bits(std::string_view where, int bits, double stated) {
  if (stated != bits)
    throw Error(ErrorCode::bad_file, std::string(where), std::to_string(stated) + " bits a weight",
                std::to_string(bits) + ", the width of the stored trellis");
}

}  // namespace tandem::quant
