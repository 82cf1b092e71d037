// Block scales as checkpoints store them; fp8.h says what is refused.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "quant/fp8.h"
#include "quant/half.h"

namespace tandem::quant {

float fp8_scale(const std::byte* scales, Fp8ScaleFormat format, int64_t index) {
  if (format == Fp8ScaleFormat::f32) {
    float scale;
    std::memcpy(&scale, scales + 4 * index, 4);
    return scale;
  }
  uint16_t bits;
  std::memcpy(&bits, scales + 2 * index, 2);
  return format == Fp8ScaleFormat::f16 ? half_to_float(bits) : std::bit_cast<float>(uint32_t{bits} << 16);
}

Fp8Scales read_fp8_scales(std::string_view prefix, const TensorFacts& scales, std::span<const int64_t> weight_shape) {
  constexpr int64_t largest_dimension = int64_t{1} << 31;
  const bool fits = std::all_of(weight_shape.begin(), weight_shape.end(),
                                [](int64_t size) { return size >= 1 && size <= largest_dimension; });
  if (!fits || weight_shape.size() < 2 || weight_shape.size() > 3)
    refuse_tensor(prefix, scales.name, "an FP8 weight of shape " + shape_text(weight_shape),
                  "two or three dimensions of at most 2^31");
  std::vector<int64_t> expected(weight_shape.begin(), weight_shape.end());
  for (size_t i = expected.size() - 2; i < expected.size(); ++i) expected[i] = fp8_blocks(expected[i]);
  if (scales.shape != expected)
    refuse_tensor(prefix, scales.name, "shape " + shape_text(scales.shape),
                  shape_text(expected) + ", one scale for every 128x128 block");
  check_tensor(prefix, scales, "F32 or BF16 or F16", expected);
  Fp8Scales read;
  read.data = scales.data.data();
  read.format = scales.dtype == "F32"    ? Fp8ScaleFormat::f32
                : scales.dtype == "BF16" ? Fp8ScaleFormat::bf16
                                         : Fp8ScaleFormat::f16;
  read.matrix = expected[expected.size() - 2] * expected.back();
  const auto count = static_cast<int64_t>(scales.data.size()) / fp8_scale_bytes(read.format);
  for (int64_t i = 0; i < count; ++i) {
    const float scale = fp8_scale(read.data, read.format, i);
    if (!std::isfinite(scale) || scale < 0)
      refuse_tensor(prefix, scales.name, fmt::format("{} at element {}", scale, i),
                    "scales that are finite and not negative");
  }
  return read;
}

}  // namespace tandem::quant
