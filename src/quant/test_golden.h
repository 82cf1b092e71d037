// What the golden tables of spec/quantization.md 1.7 and 1.13 are made with: the hash, the generator of bits and a few
// distributions. Only tests include this.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace tandem::quant {

inline uint64_t fnv1a64(std::span<const std::byte> bytes) {
  uint64_t hash = 14695981039346656037u;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 1099511628211u;
  return hash;
}

template <class T>
uint64_t fnv1a64_of(const std::vector<T>& values) {  // the bytes in memory, little-endian
  return fnv1a64(std::as_bytes(std::span<const T>(values)));
}

// r ← r·1664525 + 1013904223 mod 2^32.
class Lcg {
 public:
  explicit Lcg(uint32_t seed) : state_(seed) {}
  uint32_t next() { return state_ = state_ * 1664525u + 1013904223u; }
  uint32_t next16() { return next() >> 16; }
  double uniform() { return (next16() * 65536.0 + next16() + 0.5) / 4294967296.0; }  // (0, 1)
  float gaussian() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return static_cast<float>(radius * std::cos(6.283185307179586 * uniform()));
  }

 private:
  uint32_t state_;
};

inline std::vector<float> gaussian_values(size_t count, uint32_t seed) {
  Lcg random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = random.gaussian();
  return values;
}

inline std::vector<std::byte> random_bytes(size_t count, uint32_t seed) {
  Lcg random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next16());
  return bytes;
}

inline double relative_l2(std::span<const float> value, std::span<const float> expected) {
  double error = 0, total = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += (static_cast<double>(value[i]) - expected[i]) * (static_cast<double>(value[i]) - expected[i]);
    total += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(error / total);
}

}  // namespace tandem::quant
