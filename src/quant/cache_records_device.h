// Writers and readers of cache records in kernels: byte for byte what cache_records.cc does with the same fp32 row. A
// warp writes a row; readers take codes apart, their scales stay fp32 (cache_records.h has the layouts).
//
// A row that is not finite is refused on the CPU; here it is stored as NaN codes, which every reader shows.
#pragma once

#include "device/kernel.h"

namespace tandem::quant {

// RecordKind's values (cache_records.h, which kernels cannot include; records_of_kernels.cc compares them).
enum : int32_t {
  record_f32,
  record_bf16,
  record_latent_fp8,
  record_latent_fp8_row,
  record_latent_nvfp4,
  record_index_fp8
};

constexpr int32_t record_tile = 128;  // values that share a scale in latent_fp8
constexpr int32_t record_group = 16;  // in latent_nvfp4
constexpr uint32_t e4m3_nan = 0x7f;
constexpr float record_smallest_scale = 1.17549435e-38f;

// Offsets inside a latent_nvfp4 record.
TANDEM_DEVICE int32_t nvfp4_scales_at(int32_t width) { return (width + 1) / 2; }
TANDEM_DEVICE int32_t nvfp4_reserved_at(int32_t width) {
  return nvfp4_scales_at(width) + (width + record_group - 1) / record_group;
}
TANDEM_DEVICE int32_t nvfp4_outer_at(int32_t width) { return nvfp4_reserved_at(width) + 4; }
constexpr int32_t nvfp4_padding_bytes = 8;

// fp8.h's e4m3_encode().
TANDEM_DEVICE uint32_t e4m3_encode(float x) {
  const uint32_t bits = device::float_to_bits(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return e4m3_nan;
  if (magnitude >= 0x43e00000u) return sign | 0x7eu;
  if (magnitude < 0x3c800000u)
    return sign | (device::float_to_bits(device::bits_to_float(magnitude) + 0x1p14f) - 0x46800000u);
  return sign | (magnitude + 0x7ffffu + (magnitude >> 20 & 1u) - 0x3c000000u) >> 20;
}
// The value of a code; exact in bf16.
TANDEM_DEVICE float e4m3_value(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float value = device::bits_to_float(magnitude << 20) * 0x1p120f;  // another exponent bias; subnormals too
  const uint32_t bits = magnitude == e4m3_nan ? 0x7fc00000u : device::float_to_bits(value);
  return device::bits_to_float(bits | (code & 0x80u) << 24);
}
// nvfp4.h's e2m1_encode().
TANDEM_DEVICE uint32_t e2m1_encode(float x) {
  const uint32_t bits = device::float_to_bits(x);
  const float a = device::bits_to_float(bits & 0x7fffffffu);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 7;
  const uint32_t code = static_cast<uint32_t>(a > 0.25f) + static_cast<uint32_t>(a >= 0.75f) +
                        static_cast<uint32_t>(a > 1.25f) + static_cast<uint32_t>(a >= 1.75f) +
                        static_cast<uint32_t>(a > 2.5f) + static_cast<uint32_t>(a >= 3.5f) +
                        static_cast<uint32_t>(a > 5.0f);
  return code | bits >> 31 << 3;
}
TANDEM_DEVICE float e2m1_value(uint32_t code) {
  const uint32_t magnitude = code & 7u;  // 0, 0.5, then 1 and 1.5 times powers of two
  const float value = magnitude < 2 ? 0.5f * static_cast<float>(magnitude)
                                    : device::bits_to_float(((magnitude >> 1) + 126u) << 23 | (magnitude & 1u) << 22);
  return (code & 8u) != 0 ? -value : value;
}

TANDEM_DEVICE float power_of_two_at_least(float x) {
  return device::bits_to_float((device::float_to_bits(x) + 0x7fffffu) & 0x7f800000u);
}
TANDEM_DEVICE float scale_for(float absolute_max, float largest) {
  const float scale = absolute_max / largest;
  return scale > record_smallest_scale ? scale : record_smallest_scale;
}

// Records lie at any byte.
TANDEM_DEVICE void store_float(uint8_t* to, float value) {
  const uint32_t bits = device::float_to_bits(value);
  for (uint32_t i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(bits >> 8 * i);
}
TANDEM_DEVICE float load_float(const uint8_t* from) {
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 4; ++i) bits |= static_cast<uint32_t>(from[i]) << 8 * i;
  return device::bits_to_float(bits);
}

// The largest magnitude of values first … last − 1 as bits, which are ordered like magnitudes with NaN above infinity.
TANDEM_DEVICE uint32_t largest_magnitude(const float* row, int32_t first, int32_t last, int32_t lane) {
  uint32_t largest = 0;
  for (int32_t i = first + lane; i < last; i += 32) {
    const uint32_t magnitude = device::float_to_bits(row[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    const uint32_t other = device::shuffle_xor(largest, mask);
    largest = other > largest ? other : largest;
  }
  return largest;
}
TANDEM_DEVICE bool is_finite_magnitude(uint32_t bits) { return bits < 0x7f800000u; }

TANDEM_DEVICE void encode_e4m3(const float* row, int32_t first, int32_t last, float scale, bool finite, uint8_t* codes,
                               int32_t lane) {
  for (int32_t i = first + lane; i < last; i += 32)
    codes[i] = static_cast<uint8_t>(finite ? e4m3_encode(row[i] / scale) : e4m3_nan);
}

TANDEM_DEVICE void encode_nvfp4(const float* row, int32_t width, float outer_scale, uint32_t largest_bits, uint8_t* out,
                                int32_t lane) {
  const bool finite = is_finite_magnitude(largest_bits);
  const float outer = !finite           ? 1.0f
                      : outer_scale > 0 ? outer_scale
                                        : scale_for(device::bits_to_float(largest_bits), 2688.0f);
  const int32_t scales = nvfp4_scales_at(width), reserved = nvfp4_reserved_at(width), outer_at = nvfp4_outer_at(width);
  for (int32_t group = lane; group * record_group < width; group += 32) {
    const int32_t first = group * record_group, last = first + record_group < width ? first + record_group : width;
    float largest = 0.0f;
    for (int32_t i = first; i < last; ++i) {
      const float a = row[i] < 0.0f ? -row[i] : row[i];
      largest = a > largest ? a : largest;
    }
    const uint32_t scale = finite ? e4m3_encode(largest / (6.0f * outer)) : e4m3_nan;
    out[scales + group] = static_cast<uint8_t>(scale);
    const float step = e4m3_value(scale) * outer;
    const bool codes = finite && scale != 0;
    for (int32_t i = first; i < last; i += 2) {
      const uint32_t low = codes ? e2m1_encode(row[i] / step) : 0u;
      const uint32_t high = codes && i + 1 < last ? e2m1_encode(row[i + 1] / step) : 0u;
      out[i / 2] = static_cast<uint8_t>(low | high << 4);
    }
  }
  if (lane < 4) out[reserved + lane] = 0;
  if (lane == 4) store_float(out + outer_at, outer);
  if (lane >= 8 && lane < 8 + nvfp4_padding_bytes) out[outer_at + 4 + lane - 8] = 0;
}

// hadamard.h's factor for n values, a power of two.
TANDEM_DEVICE constexpr float hadamard_factor(int32_t n) {
  float even = 1.0f;
  int32_t left = n;
  for (; left >= 4; left /= 4) even *= 0.5f;
  return n == 128 ? 0.088388347648f : left == 1 ? even : 0.70710678118654752f * even;
}

// rotate_index() of a row in shared memory: bf16, orthonormal Walsh–Hadamard in fp32, bf16.
TANDEM_DEVICE void rotate_index(float* row, int32_t width, int32_t lane) {
  for (int32_t i = lane; i < width; i += 32) row[i] = device::round_to_bf16(row[i]);
  __syncwarp();
  for (int32_t stride = 1; stride < width; stride *= 2) {
    for (int32_t i = lane; i < width / 2; i += 32) {
      const int32_t at = i / stride * 2 * stride + i % stride;
      const float a = row[at], b = row[at + stride];
      row[at] = a + b;
      row[at + stride] = a - b;
    }
    __syncwarp();
  }
  for (int32_t i = lane; i < width; i += 32) row[i] = device::round_to_bf16(row[i] * hadamard_factor(width));
  __syncwarp();
}
// The scale of a rotated row's codes: quantize_rotated().
TANDEM_DEVICE float rotated_scale(uint32_t largest_bits) {
  const float largest = device::bits_to_float(largest_bits);
  return is_finite_magnitude(largest_bits) ? power_of_two_at_least((largest > 1e-4f ? largest : 1e-4f) / 448.0f) : 1.0f;
}

// encode_record() of a row in shared memory by one warp, for records with one plane.
TANDEM_DEVICE void encode_record(int32_t kind, int32_t width, float outer_scale, const float* row, uint8_t* data,
                                 int32_t lane) {
  if (kind == record_bf16) {
    for (int32_t i = lane; i < width; i += 32) reinterpret_cast<device::bf16*>(data)[i] = device::to_bf16(row[i]);
    return;
  }
  const uint32_t largest = largest_magnitude(row, 0, width, lane);
  const bool finite = is_finite_magnitude(largest);
  if (kind == record_latent_fp8) {
    for (int32_t first = 0; first < width; first += record_tile) {
      const int32_t last = first + record_tile < width ? first + record_tile : width;
      const float of_tile = device::bits_to_float(largest_magnitude(row, first, last, lane));
      const float scale = finite ? scale_for(of_tile, 448.0f) : 1.0f;
      encode_e4m3(row, first, last, scale, finite, data, lane);
      if (lane == 0) store_float(data + width + first / record_tile * 4, scale);
    }
  } else if (kind == record_latent_fp8_row) {
    const float scale = finite ? power_of_two_at_least(scale_for(device::bits_to_float(largest), 448.0f)) : 1.0f;
    encode_e4m3(row, 0, width, scale, finite, data, lane);
    if (lane == 0) store_float(data + width, scale);
  } else if (kind == record_latent_nvfp4) {
    encode_nvfp4(row, width, outer_scale, largest, data, lane);
  }
}

// The same for index_fp8, whose scale has a plane of its own; the row is rotated in place.
TANDEM_DEVICE void encode_index(int32_t width, float* row, uint8_t* codes, uint8_t* scale, int32_t lane) {
  rotate_index(row, width, lane);
  const uint32_t largest = largest_magnitude(row, 0, width, lane);
  const float value = rotated_scale(largest);
  encode_e4m3(row, 0, width, value, is_finite_magnitude(largest), codes, lane);
  if (lane == 0) store_float(scale, value);
}

// Eight e4m3 codes (in two words) as bf16 pairs; exact.
TANDEM_DEVICE uint32_t e4m3_pair(uint32_t codes) {
  return device::float_to_bits(e4m3_value(codes & 0xffu)) >> 16 |
         (device::float_to_bits(e4m3_value(codes >> 8 & 0xffu)) & 0xffff0000u);
}
TANDEM_DEVICE uint4 e4m3_eight(uint32_t first, uint32_t second) {
  return make_uint4(e4m3_pair(first), e4m3_pair(first >> 16), e4m3_pair(second), e4m3_pair(second >> 16));
}
// Eight e2m1 codes, low nibble first, times their group's e4m3 scale, as bf16 pairs; exact (six significant bits).
TANDEM_DEVICE uint32_t nvfp4_pair(uint32_t codes, float scale) {
  return device::float_to_bits(e2m1_value(codes & 15u) * scale) >> 16 |
         (device::float_to_bits(e2m1_value(codes >> 4 & 15u) * scale) & 0xffff0000u);
}
TANDEM_DEVICE uint4 nvfp4_eight(uint32_t codes, float scale) {
  return make_uint4(nvfp4_pair(codes, scale), nvfp4_pair(codes >> 8, scale), nvfp4_pair(codes >> 16, scale),
                    nvfp4_pair(codes >> 24, scale));
}

}  // namespace tandem::quant
