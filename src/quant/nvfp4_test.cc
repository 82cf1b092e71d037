// NVFP4 against spec/quantization.md 5.2 and 5.4, both dialects, and what is refused (spec/model.md 8.3).
#include "quant/nvfp4.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "base/error.h"
#include "quant/fp8.h"
#include "quant/test_golden.h"

namespace tandem::quant::nvfp4_test {
namespace {

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

const std::vector<float> worked_row = {0.11f, -0.52f, 0.9f,   1.37f, -2.2f, 0.03f,  0.75f, -0.26f,
                                       0,     0.61f,  -1.05f, 0.4f,  3.1f,  -0.18f, 0.33f, -0.7f};
const std::vector<float> worked_values = {0, -0.5f, 1,  1.5f, -2, 0,      0.75f, -0.25f,
                                          0, 0.5f,  -1, 0.5f, 3,  -0.25f, 0.25f, -0.75f};

TEST(E2m1, EveryCodeHasItsValueAndComesBack) {
  const float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(e2m1_values[code], (code & 8 ? -1.0f : 1.0f) * magnitudes[code & 7]);
    EXPECT_EQ(std::signbit(e2m1_values[code]), code >= 8);
    EXPECT_EQ(e2m1_encode(e2m1_values[code]), code);
  }
}

TEST(E2m1, TiesGoToTheEvenCodeAndLargeValuesSaturate) {
  const std::map<float, float> ties = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2}, {2.5f, 2}, {3.5f, 4}, {5, 4}};
  int code = 0;
  for (const auto& [tie, value] : ties) {
    EXPECT_EQ(e2m1_values[e2m1_encode(tie)], value) << tie;
    EXPECT_EQ(e2m1_values[e2m1_encode(-tie)], -value) << tie;
    EXPECT_EQ(e2m1_encode(std::nextafter(tie, 0.0f)), code) << tie;
    EXPECT_EQ(e2m1_encode(std::nextafter(tie, 9.0f)), ++code) << tie;
  }
  EXPECT_EQ(e2m1_encode(7), 7);
  EXPECT_EQ(e2m1_encode(-std::numeric_limits<float>::infinity()), 15);
}

TEST(Nvfp4, WorkedExample) {
  const std::vector<std::byte> expected = bytes_of({0xA0, 0x54, 0x0E, 0x93, 0x20, 0x2C, 0x97, 0xB1});
  for (const auto& [outer, scale_code] : {std::pair{0x1p-9f, 0x78}, std::pair{1.0f, 0x30}}) {
    std::vector<std::byte> codes(8), scales(1);
    nvfp4_encode_run(worked_row.data(), 16, outer, codes.data(), scales.data());
    EXPECT_EQ(scales, bytes_of({scale_code}));
    EXPECT_EQ(codes, expected);
    std::vector<float> decoded(16);
    nvfp4_decode_run(codes.data(), scales.data(), outer, 16, NibbleOrder::low_first, decoded.data());
    EXPECT_EQ(decoded, worked_values);
    EXPECT_NEAR(relative_l2(decoded, worked_row), 0.0796, 5e-5);
  }
}

TEST(Nvfp4, NibbleOrderIsASetting) {
  const std::vector<std::byte> codes = bytes_of({0x2A}), scales = bytes_of({0x38});  // scale 1
  float low[2], high[2];
  nvfp4_decode_run(codes.data(), scales.data(), 2, 2, NibbleOrder::low_first, low);
  nvfp4_decode_run(codes.data(), scales.data(), 2, 2, NibbleOrder::high_first, high);
  EXPECT_EQ(low[0], -2);
  EXPECT_EQ(low[1], 2);
  EXPECT_EQ(high[0], 2);
  EXPECT_EQ(high[1], -2);
}

TEST(Nvfp4, PowersOfTwoAsOuterScaleGiveTheSameBitsInTheNormalRange) {
  const std::vector<float> x = gaussian_values(16 * 200, 8);
  std::vector<float> one(x.size()), small(x.size());
  std::vector<std::byte> codes(x.size() / 2), scales(x.size() / 16);
  nvfp4_encode_run(x.data(), x.size(), 1, codes.data(), scales.data());
  nvfp4_decode_run(codes.data(), scales.data(), 1, x.size(), NibbleOrder::low_first, one.data());
  nvfp4_encode_run(x.data(), x.size(), 0x1p-9f, codes.data(), scales.data());
  nvfp4_decode_run(codes.data(), scales.data(), 0x1p-9f, x.size(), NibbleOrder::low_first, small.data());
  EXPECT_EQ(one, small);
  EXPECT_NEAR(relative_l2(one, x), 0.0951, 0.004);  // 3,200 values; the cache record's test measures closer
}

TEST(Nvfp4, GroupsBelowTheScalesUnderflowToZeros) {
  // Below half of 6·2^-9·s the scale rounds to 0 and so do all values; above, it is subnormal and they live.
  std::vector<float> x(16, 0.0058f), decoded(16);
  std::vector<std::byte> codes(8), scales(1);
  nvfp4_encode_run(x.data(), 16, 1, codes.data(), scales.data());
  EXPECT_EQ(scales, bytes_of({0}));
  EXPECT_EQ(codes, bytes_of({0, 0, 0, 0, 0, 0, 0, 0}));
  nvfp4_encode_run(x.data(), 16, 0x1p-9f, codes.data(), scales.data());
  nvfp4_decode_run(codes.data(), scales.data(), 0x1p-9f, 16, NibbleOrder::low_first, decoded.data());
  EXPECT_NEAR(decoded[0], 0.0058f, 0.0004f);
}

TEST(Nvfp4, MatricesRoundToNearestOfTheirOwnSteps) {
  const int64_t rows = 24, columns = 64;
  std::vector<float> w = gaussian_values(rows * columns, 9);
  for (int i = 0; i < 16; ++i) w[5 * columns + 16 + i] = 0;  // a group of zeros
  const Nvfp4Data data = nvfp4_encode(w.data(), rows, columns);
  float largest = 0;
  for (const float value : w) largest = std::max(largest, std::abs(value));
  EXPECT_EQ(data.outer_scale, largest / 2688);
  Nvfp4Matrix m;
  m.codes = data.codes.data(), m.scales = data.scales.data(), m.outer_scale = data.outer_scale;
  m.rows = rows, m.columns = columns;
  std::vector<float> decoded(w.size());
  nvfp4_decode_rows(m, 0, rows, decoded.data());
  for (size_t i = 0; i < w.size(); ++i) {
    const float step = e4m3_values[static_cast<uint8_t>(data.scales[i / 16])] * data.outer_scale;
    const bool fine = std::abs(w[i]) < 2 * step;  // values half a step apart
    ASSERT_LE(std::abs(decoded[i] - w[i]), step * (fine ? 0.25001f : 1.0001f)) << i;
  }
  for (int i = 0; i < 16; ++i) EXPECT_EQ(decoded[5 * columns + 16 + i], 0);
  std::vector<float> part(2 * columns);
  nvfp4_decode_rows(m, 3, 2, part.data());
  EXPECT_EQ(part, std::vector<float>(decoded.begin() + 3 * columns, decoded.begin() + 5 * columns));

  const Nvfp4Data again = nvfp4_encode(decoded.data(), rows, columns);
  EXPECT_EQ(again.outer_scale, data.outer_scale);
  EXPECT_EQ(again.scales, data.scales);
}

TEST(Nvfp4, ZerosAndNaN) {
  std::vector<float> w(32), decoded(32, 1.0f);
  const Nvfp4Data zeros = nvfp4_encode(w.data(), 2, 16);
  EXPECT_EQ(zeros.outer_scale, 1);  // its reciprocal is finite as well
  nvfp4_decode_run(zeros.codes.data(), zeros.scales.data(), zeros.outer_scale, 16, NibbleOrder::low_first,
                   decoded.data());
  EXPECT_EQ(decoded[0], 0);
  w[20] = std::nanf("");
  EXPECT_THROW(nvfp4_encode(w.data(), 2, 16), Error);
  EXPECT_THROW(nvfp4_encode(w.data(), 2, 15), Error);
}

// A sound weight of [4, 32] in either dialect; tests spoil it.
struct Weight {
  std::vector<std::byte> codes = random_bytes(64, 1), scales = std::vector<std::byte>(8, std::byte{0x38});
  float global;
  std::vector<TensorFacts> tensors;

  explicit Weight(Nvfp4Dialect dialect) : global(dialect == Nvfp4Dialect::modelopt ? 0.25f : 4.0f) {
    const bool modelopt = dialect == Nvfp4Dialect::modelopt;
    tensors = {{modelopt ? "weight" : "weight_packed", "U8", {4, 16}, codes},
               {"weight_scale", "F8_E4M3", {4, 2}, scales},
               {modelopt ? "weight_scale_2" : "weight_global_scale", "F32", {}, global_bytes()}};
  }
  std::span<const std::byte> global_bytes() const { return std::as_bytes(std::span<const float>(&global, 1)); }
  Nvfp4Matrix read(int64_t rows = 4, int64_t columns = 32) const {
    return read_nvfp4("expert", tensors, rows, columns);
  }
};

TEST(ReadNvfp4, BothDialectsGiveTheSameNumbers) {
  std::vector<float> values[2];
  for (const Nvfp4Dialect dialect : {Nvfp4Dialect::modelopt, Nvfp4Dialect::compressed_tensors}) {
    Weight weight(dialect);
    EXPECT_TRUE(is_nvfp4(weight.tensors));
    const Nvfp4Matrix m = weight.read();
    EXPECT_EQ(m.dialect, dialect);
    EXPECT_EQ(m.outer_scale, 0.25f);
    std::vector<float>& out = values[static_cast<int>(dialect)];
    out.resize(128);
    nvfp4_decode_rows(m, 0, 4, out.data());
  }
  EXPECT_EQ(values[0], values[1]);
  EXPECT_EQ(values[0][1], e2m1_values[static_cast<int>(random_bytes(64, 1)[0]) >> 4] * 0.25f);
}

void expect_refused(Nvfp4Dialect dialect, const std::string& text, const std::function<void(Weight&)>& spoil) {
  Weight weight(dialect);
  spoil(weight);
  try {
    weight.read();
    FAIL() << "accepted; expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_file);
    EXPECT_EQ(std::string(error.what()).rfind("expert." + text, 0), 0u) << error.what();
  }
}

TEST(ReadNvfp4, RefusesMixedDialectsAndMissingScales) {
  using enum Nvfp4Dialect;
  expect_refused(modelopt, "weight_global_scale: a tensor that NVFP4 weights of ModelOpt do not have",
                 [](Weight& w) { w.tensors[2].name = "weight_global_scale"; });
  expect_refused(compressed_tensors, "weight_scale_2: a tensor that NVFP4 weights of compressed-tensors do not have",
                 [](Weight& w) { w.tensors[2].name = "weight_scale_2"; });
  expect_refused(compressed_tensors, "weight: a tensor that", [](Weight& w) {
    w.tensors.push_back({"weight", "U8", {4, 16}, w.codes});
  });
  expect_refused(modelopt, "weight_scale: missing", [](Weight& w) { w.tensors.erase(w.tensors.begin() + 1); });
  expect_refused(modelopt, "weight_scale_2: missing", [](Weight& w) { w.tensors.pop_back(); });
  expect_refused(compressed_tensors, "weight_global_scale: missing", [](Weight& w) { w.tensors.pop_back(); });
  expect_refused(compressed_tensors, "weight_packed: missing", [](Weight& w) { w.tensors.erase(w.tensors.begin()); });
  expect_refused(modelopt, "weight_zero_point: a tensor that", [](Weight& w) {
    w.tensors.push_back({"weight_zero_point", "U8", {4, 16}, w.codes});
  });
}

TEST(ReadNvfp4, RefusesShapesDtypesAndMissingBytes) {
  using enum Nvfp4Dialect;
  expect_refused(modelopt, "weight: dtype BF16; expected U8", [](Weight& w) { w.tensors[0].dtype = "BF16"; });
  expect_refused(modelopt, "weight: shape [4, 32]; expected [4, 16]", [](Weight& w) { w.tensors[0].shape = {4, 32}; });
  expect_refused(modelopt, "weight: 63 bytes of data; expected 64 bytes",
                 [](Weight& w) { w.tensors[0].data = w.tensors[0].data.first(63); });
  expect_refused(modelopt, "weight_scale: dtype F32; expected F8_E4M3", [](Weight& w) { w.tensors[1].dtype = "F32"; });
  expect_refused(modelopt, "weight_scale: shape [2, 4]; expected [4, 2]", [](Weight& w) {
    w.tensors[1].shape = {2, 4};
  });
  expect_refused(modelopt, "weight_scale_2: shape [4]; expected one element",
                 [](Weight& w) { w.tensors[2].shape = {4}; });
  expect_refused(modelopt, "input_scale: dtype U8; expected F32", [](Weight& w) {
    w.tensors.push_back({"input_scale", "U8", {}, {}});
  });
  const Weight weight(modelopt);
  EXPECT_THROW(weight.read(4, 24), Error);  // not a multiple of 16
  EXPECT_THROW(weight.read(INT64_MAX, 32), Error);
  EXPECT_THROW(weight.read(4, INT64_MAX - 15), Error);
  EXPECT_THROW(weight.read(0, 32), Error);
  EXPECT_THROW(weight.read(-4, -32), Error);
}

TEST(ReadNvfp4, RefusesScalesThatCannotBe) {
  using enum Nvfp4Dialect;
  expect_refused(modelopt, "weight_scale: NaN at element 5", [](Weight& w) { w.scales[5] = std::byte{0x7f}; });
  expect_refused(modelopt, "weight_scale: NaN at element 0", [](Weight& w) { w.scales[0] = std::byte{0xff}; });
  expect_refused(modelopt, "weight_scale: a negative scale at element 7",
                 [](Weight& w) { w.scales[7] = std::byte{0xb8}; });
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {0.0f, -1.0f, std::nanf(""), infinity}) {
    expect_refused(modelopt, "weight_scale_2: value ", [bad](Weight& w) { w.global = bad; });
    expect_refused(compressed_tensors, "weight_global_scale: value ", [bad](Weight& w) { w.global = bad; });
  }
  expect_refused(compressed_tensors, "weight_global_scale: value ",  // its reciprocal overflows
                 [](Weight& w) { w.global = std::numeric_limits<float>::denorm_min(); });
}

TEST(ReadNvfp4, OtherWeightsAreNotTaken) {
  EXPECT_FALSE(is_nvfp4(std::vector<TensorFacts>{{"weight", "BF16", {4, 16}, {}}}));
  EXPECT_FALSE(
      is_nvfp4(std::vector<TensorFacts>{{"weight", "F8_E4M3", {4, 16}, {}}, {"weight_scale_inv", "F32", {}, {}}}));
  EXPECT_TRUE(is_nvfp4(std::vector<TensorFacts>{{"weight", "U8", {4, 16}, {}}}));
}

}  // namespace
}  // namespace tandem::quant::nvfp4_test
