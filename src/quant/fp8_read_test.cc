// Block scales of FP8 weights as they are stored: three types, and what is refused (spec/model.md 8.2,
// spec/quantization.md 7).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "base/error.h"
#include "quant/fp8.h"
#include "quant/half.h"

namespace tandem::quant::fp8_read_test {
namespace {

// Six scales of a [200, 300] weight.
struct Scales {
  std::vector<std::byte> bytes;
  TensorFacts facts;

  explicit Scales(const std::string& dtype = "F32") {
    const size_t width = dtype == "F32" ? 4 : 2;
    bytes.resize(1 + 6 * width);  // odd addresses
    for (size_t i = 0; i < 6; ++i) set(dtype, i, 0.5f + static_cast<float>(i));
    facts = {"weight_scale_inv", dtype, {2, 3}, std::span<const std::byte>(bytes).subspan(1)};
  }
  void set(const std::string& dtype, size_t index, float value) {
    const auto half =
        dtype == "F16" ? float_to_half(value) : static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    if (dtype == "F32") {
      std::memcpy(bytes.data() + 1 + 4 * index, &value, 4);
    } else {
      std::memcpy(bytes.data() + 1 + 2 * index, &half, 2);
    }
  }
};

const std::vector<int64_t> weight_shape = {200, 300};

TEST(ReadFp8, ScalesOfThreeTypes) {
  for (const auto& [dtype, format] : {std::pair{"F32", Fp8ScaleFormat::f32}, std::pair{"BF16", Fp8ScaleFormat::bf16},
                                      std::pair{"F16", Fp8ScaleFormat::f16}}) {
    const Scales stored(dtype);
    const Fp8Scales read = read_fp8_scales("layer", stored.facts, weight_shape);
    EXPECT_EQ(read.format, format);
    EXPECT_EQ(read.matrix, 6);
    for (int64_t i = 0; i < 6; ++i)
      EXPECT_EQ(fp8_scale(read.data, read.format, i), 0.5f + static_cast<float>(i)) << dtype;
  }
  Scales zero;
  zero.set("F32", 0, 0.0f);  // what some writers give a block of zeros
  EXPECT_NO_THROW(read_fp8_scales("layer", zero.facts, weight_shape));
}

TEST(ReadFp8, StacksHaveAMatrixOfScalesEach) {
  Scales stored;
  stored.facts.shape = {3, 1, 2};
  const std::vector<int64_t> stack = {3, 128, 129};
  EXPECT_EQ(read_fp8_scales("layer", stored.facts, stack).matrix, 2);
}

void expect_refused(const std::string& text, const std::function<void(Scales&)>& spoil,
                    const std::vector<int64_t>& shape = weight_shape) {
  Scales stored;
  spoil(stored);
  try {
    read_fp8_scales("layer", stored.facts, shape);
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_file);
    EXPECT_EQ(error.where(), "layer.weight_scale_inv");
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(ReadFp8, Refusals) {
  expect_refused("dtype F8_E4M3; expected F32 or BF16 or F16", [](Scales& s) { s.facts.dtype = "F8_E4M3"; });
  expect_refused("shape [3, 2]; expected [2, 3]", [](Scales& s) { s.facts.shape = {3, 2}; });
  expect_refused("shape []; expected [2, 3]", [](Scales& s) { s.facts.shape = {}; });
  expect_refused("23 bytes of data; expected 24", [](Scales& s) { s.facts.data = s.facts.data.first(23); });
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), -1.0f})
    expect_refused(" at element 4; expected scales that are finite", [bad](Scales& s) { s.set("F32", 4, bad); });
  const auto nothing = [](Scales&) {};
  constexpr int64_t huge = std::numeric_limits<int64_t>::max();
  expect_refused("[9223372036854775807, 300]", nothing, {huge, 300});
  expect_refused("[0, 300]", nothing, {0, 300});
  expect_refused("shape []", nothing, {});
  expect_refused("[300]", nothing, {300});
  expect_refused("[2, 2, 200, 300]", nothing, {2, 2, 200, 300});
  // The largest shape that is looked at, with scales that agree and no data for them.
  expect_refused("bytes of data",
                 [](Scales& s) {
                   s.facts.shape = {int64_t{1} << 24, int64_t{1} << 24};
                 },
                 {int64_t{1} << 31, int64_t{1} << 31});
}

}  // namespace
}  // namespace tandem::quant::fp8_read_test
