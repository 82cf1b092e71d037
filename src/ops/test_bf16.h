// bf16 values in tests: rounding, and how far two rows are from each other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace tandem::ops {

// Round to nearest, ties to even.
inline uint16_t bf16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float bf16_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}
inline std::vector<uint16_t> to_bf16(std::span<const float> values) {
  std::vector<uint16_t> out;
  out.reserve(values.size());
  for (const float x : values) out.push_back(bf16_bits(x));
  return out;
}
// The values, each rounded to bf16.
inline std::vector<float> as_bf16_values(std::span<const float> values) {
  std::vector<float> out;
  out.reserve(values.size());
  for (const float x : values) out.push_back(bf16_value(bf16_bits(x)));
  return out;
}
inline std::vector<float> from_bf16(std::span<const uint16_t> bits) {
  std::vector<float> out;
  out.reserve(bits.size());
  for (const uint16_t x : bits) out.push_back(bf16_value(x));
  return out;
}

// The largest distance in units in the last place between bf16 values and expected fp32 values, rounded. Values that
// differ by at most `tolerance` absolutely (where a sum cancels) do not count. NaN is as far as can be.
inline int64_t bf16_distance(const uint16_t* got, std::span<const float> expected, float tolerance = 0.0f) {
  const auto ordered = [](uint16_t bits) {
    return bits & 0x8000 ? -static_cast<int64_t>(bits & 0x7fff) : static_cast<int64_t>(bits);
  };
  int64_t most = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const float value = bf16_value(got[i]);
    if (std::isnan(value) || std::isnan(expected[i])) return INT64_MAX;
    if (std::abs(value - expected[i]) <= tolerance) continue;
    most = std::max(most, std::abs(ordered(got[i]) - ordered(bf16_bits(expected[i]))));
  }
  return most;
}

}  // namespace tandem::ops
