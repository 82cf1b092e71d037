// Random numbers, stored matrices and comparisons that the tests of this room share. The comparisons are of two kinds:
// against a formula in double precision with a bound, and of bits where the order of a sum is a promise.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/linear/matrix.h"
#include "ops/simd/fp8.h"
#include "quant/exl3_matrix.h"
#include "quant/half.h"
#include "quant/nvfp4.h"

namespace tandem::ops::test {

inline double real(int64_t n) { return static_cast<double>(n); }

// splitmix64: the same numbers with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  float uniform(float low, float high) {
    const double share = static_cast<double>(bits() >> 11) * 0x1p-53;
    return static_cast<float>(low + (static_cast<double>(high) - low) * share);
  }
  float normal(float scale = 1.0f) {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(bits() >> 11) * 0x1p-53;
    return static_cast<float>((sum - 6.0) * scale);
  }
  std::vector<float> normals(int64_t n, float scale = 1.0f) {
    std::vector<float> out(static_cast<size_t>(n));
    for (float& x : out) x = normal(scale);
    return out;
  }
  std::vector<float> uniforms(int64_t n, float low, float high) {
    std::vector<float> out(static_cast<size_t>(n));
    for (float& x : out) x = uniform(low, high);
    return out;
  }

 private:
  uint64_t state_;
};

inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

// Memory that nothing may read before it is written.
inline std::vector<float> unwritten(int64_t n) { return std::vector<float>(static_cast<size_t>(n), not_a_number); }

// Equal bits; two NaN are equal (which operand's payload survives is up to the compiler).
inline bool same_bits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}
inline ::testing::AssertionResult same_bits(const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (!same_bits(a[i], b[i])) {
      return ::testing::AssertionFailure()
             << "value " << i << " of " << n << ": " << std::hexfloat << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " values";
  return same_bits(a.data(), b.data(), static_cast<int64_t>(a.size()));
}

// max|a − b| ≤ bound·max|b|, and everything finite.
inline ::testing::AssertionResult close(const std::vector<float>& a, const std::vector<double>& b, double bound) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " values";
  double largest = 0, worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return ::testing::AssertionFailure() << "value " << i << " is " << a[i];
    largest = std::max(largest, std::abs(b[i]));
    if (std::abs(a[i] - b[i]) > worst) worst = std::abs(a[i] - b[i]), at = i;
  }
  if (worst <= bound * largest) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "value " << at << " of " << a.size() << " is " << a[at] << ", expected "
                                       << b[at] << "; largest difference " << worst << ", largest value " << largest;
}

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }

inline uint16_t to_bf16(float x) {  // truncated: any bf16 value will do
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
}
inline float from_bf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// A matrix in memory of its own. Copying would leave `view` pointing at the original.
struct StoredMatrix {
  Matrix view;
  std::vector<std::byte> data, scales, output_scales;  // EXL3: scales of inputs and of outputs
  std::vector<float> values;                           // what the stored weights mean, [out, in]

  StoredMatrix() = default;
  StoredMatrix(StoredMatrix&&) = default;
  StoredMatrix& operator=(StoredMatrix&&) = default;
  double at(int64_t o, int64_t k) const { return values[static_cast<size_t>(o * view.in_features + k)]; }
};

struct MatrixOptions {
  float scale = 1.0f;
  int64_t leaf_columns = -1;  // −1: all
  int64_t block_row = 0;
  int64_t misaligned = 0;  // bytes past an aligned address
  int bits = 4;            // EXL3
  quant::Exl3Codebook codebook = quant::Exl3Codebook::mcg;
  bool signs = false;  // EXL3: legacy signs instead of scales
  quant::Fp8ScaleFormat scale_format = quant::Fp8ScaleFormat::f32;
};

// Columns must be a multiple of 16.
inline void fill_nvfp4(Random& random, const MatrixOptions& options, StoredMatrix& m) {
  const int64_t out = m.view.out_features, in = m.view.in_features, at = options.misaligned;
  m.data.resize(static_cast<size_t>(at + out * in / 2));
  m.scales.resize(static_cast<size_t>(at + out * in / 16));
  for (std::byte& code : m.data) code = static_cast<std::byte>(random.below(256));
  for (std::byte& scale : m.scales) scale = static_cast<std::byte>(1 + random.below(126));
  m.view.outer_scale = random.uniform(0.002f, 0.01f) * options.scale;
  m.view.high_nibble_first = random.below(2) == 1;
  m.view.data = m.data.data() + at;
  m.view.block_scales = m.scales.data() + at;
  quant::Nvfp4Matrix stored;
  stored.codes = m.view.data;
  stored.scales = m.view.block_scales;
  stored.outer_scale = m.view.outer_scale;
  stored.rows = out;
  stored.columns = in;
  stored.order = m.view.high_nibble_first ? quant::NibbleOrder::high_first : quant::NibbleOrder::low_first;
  m.values.resize(static_cast<size_t>(out * in));
  quant::nvfp4_decode_rows(stored, 0, out, m.values.data());
}

// Any bits are a trellis; sizes are padded to 128, and the padding holds weights that nobody may see.
inline void fill_exl3(Random& random, const MatrixOptions& options, StoredMatrix& m) {
  const int64_t out = m.view.out_features, in = m.view.in_features, at = options.misaligned;
  const int64_t stored_out = (out + 127) / 128 * 128, stored_in = (in + 127) / 128 * 128;
  m.data.resize(static_cast<size_t>(at + stored_in * stored_out * options.bits / 8));
  for (std::byte& byte : m.data) byte = static_cast<std::byte>(random.below(256));
  const auto fill_scales = [&](std::vector<std::byte>& scales, int64_t count, float low, float high) {
    scales.resize(static_cast<size_t>(at + (options.signs ? count / 8 : 2 * count)));
    for (std::byte& byte : scales) byte = static_cast<std::byte>(random.below(256));
    for (int64_t i = 0; i < count && !options.signs; ++i) {
      const uint16_t half = quant::float_to_half(random.uniform(low, high) * (random.below(2) == 1 ? 1.0f : -1.0f));
      std::memcpy(scales.data() + at + 2 * i, &half, 2);
    }
  };
  fill_scales(m.scales, stored_in, 0.5f, 1.5f);
  fill_scales(m.output_scales, stored_out, 0.5f * options.scale, 1.5f * options.scale);
  m.view.data = m.data.data() + at;
  m.view.exl3 = {options.bits,  options.codebook, stored_out / 16, m.scales.data() + at, m.output_scales.data() + at,
                 options.signs, options.signs};
  quant::Exl3Matrix stored;
  stored.trellis = std::span<const std::byte>(m.data).subspan(static_cast<size_t>(at));
  stored.bits = options.bits;
  stored.codebook = options.codebook;
  stored.in_features = stored_in;
  stored.out_features = stored_out;
  (options.signs ? stored.su : stored.suh) = std::span<const std::byte>(m.scales).subspan(static_cast<size_t>(at));
  (options.signs ? stored.sv : stored.svh) =
      std::span<const std::byte>(m.output_scales).subspan(static_cast<size_t>(at));
  const std::vector<float> dense = quant::exl3_dense_f32(stored);
  for (int64_t o = 0; o < out; ++o)
    for (int64_t k = 0; k < in; ++k) m.values.push_back(dense[static_cast<size_t>(k * stored_out + o)]);
}

inline StoredMatrix random_matrix(Random& random, WeightFormat format, int64_t out, int64_t in,
                                  const MatrixOptions& options = {}) {
  StoredMatrix m;
  m.view.format = format;
  m.view.out_features = out;
  m.view.in_features = in;
  m.view.leaf_columns = options.leaf_columns < 0 ? in : options.leaf_columns;
  if (format == WeightFormat::nvfp4 || format == WeightFormat::exl3) {
    format == WeightFormat::nvfp4 ? fill_nvfp4(random, options, m) : fill_exl3(random, options, m);
    return m;
  }
  const int64_t bytes = format == WeightFormat::f32 ? 4 : format == WeightFormat::bf16 ? 2 : 1;
  const int64_t scale_columns = (in + 127) / 128, scale_rows = (options.block_row + out + 127) / 128;
  m.data.resize(static_cast<size_t>(options.misaligned + out * in * bytes));
  const int64_t scale_bytes = quant::fp8_scale_bytes(options.scale_format);
  m.view.scale_format = options.scale_format;
  if (format == WeightFormat::fp8_block)
    m.scales.resize(static_cast<size_t>(options.misaligned + scale_bytes * scale_rows * scale_columns));
  for (int64_t i = 0; i < scale_rows * scale_columns && format == WeightFormat::fp8_block; ++i) {
    const float scale = random.uniform(0.001f, 0.01f) * options.scale;
    const uint16_t half =
        options.scale_format == quant::Fp8ScaleFormat::f16 ? quant::float_to_half(scale) : to_bf16(scale);
    std::byte* at = m.scales.data() + options.misaligned + scale_bytes * i;
    scale_bytes == 4 ? std::memcpy(at, &scale, 4) : std::memcpy(at, &half, 2);
  }
  for (int64_t i = 0; i < out * in; ++i) {
    std::byte* at = m.data.data() + options.misaligned + i * bytes;
    float value = random.normal(options.scale);
    if (format == WeightFormat::f32) {
      std::memcpy(at, &value, 4);
    } else if (format == WeightFormat::bf16) {
      const uint16_t half = to_bf16(value);
      std::memcpy(at, &half, 2);
      value = from_bf16(half);
    } else {
      const auto code = static_cast<uint8_t>(random.below(127) + 128 * random.below(2));  // every code but the two NaN
      *at = static_cast<std::byte>(code);
      const int64_t block = (options.block_row + i / in) / 128 * scale_columns + i % in / 128;
      value =
          fp8_e4m3_values[code] * quant::fp8_scale(m.scales.data() + options.misaligned, options.scale_format, block);
    }
    m.values.push_back(value);
  }
  m.view.data = m.data.data() + options.misaligned;
  if (format == WeightFormat::fp8_block) m.view.block_scales = m.scales.data() + options.misaligned;
  m.view.block_row = options.block_row;
  return m;
}

}  // namespace tandem::ops::test
