// E4M3 codes and 128×128 blocks; the table is spelled out by octaves so that it is constant data.
#include "quant/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"

namespace tandem::quant {

// Eight values of one exponent; `u` is the value of the last mantissa bit.
#define TANDEM_SUBNORMALS(u) 0 * (u), 1 * (u), 2 * (u), 3 * (u), 4 * (u), 5 * (u), 6 * (u), 7 * (u)
#define TANDEM_OCTAVE(u) 8 * (u), 9 * (u), 10 * (u), 11 * (u), 12 * (u), 13 * (u), 14 * (u), 15 * (u)
#define TANDEM_HALF_TABLE(one)                                                                                         \
  TANDEM_SUBNORMALS((one)*0x1p-9f), TANDEM_OCTAVE((one)*0x1p-9f), TANDEM_OCTAVE((one)*0x1p-8f),                        \
      TANDEM_OCTAVE((one)*0x1p-7f), TANDEM_OCTAVE((one)*0x1p-6f), TANDEM_OCTAVE((one)*0x1p-5f),                        \
      TANDEM_OCTAVE((one)*0x1p-4f), TANDEM_OCTAVE((one)*0x1p-3f), TANDEM_OCTAVE((one)*0x1p-2f),                        \
      TANDEM_OCTAVE((one)*0x1p-1f), TANDEM_OCTAVE((one)*0x1p0f), TANDEM_OCTAVE((one)*0x1p1f),                          \
      TANDEM_OCTAVE((one)*0x1p2f), TANDEM_OCTAVE((one)*0x1p3f), TANDEM_OCTAVE((one)*0x1p4f), 8 * (one)*0x1p5f,         \
      9 * (one)*0x1p5f, 10 * (one)*0x1p5f, 11 * (one)*0x1p5f, 12 * (one)*0x1p5f, 13 * (one)*0x1p5f, 14 * (one)*0x1p5f, \
      NAN

const float e4m3_values[256] = {TANDEM_HALF_TABLE(1.0f), TANDEM_HALF_TABLE(-1.0f)};

#undef TANDEM_SUBNORMALS
#undef TANDEM_OCTAVE
#undef TANDEM_HALF_TABLE

uint8_t e4m3_encode(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7e);  // 448
  if (magnitude < 0x3c800000u) {
    // Below 2^-6 the unit is 2^-9, which is the unit of fp32 between 2^14 and 2^15: the addition rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  return static_cast<uint8_t>(sign | (rounded - 0x3c000000u) >> 20);
}

float absolute_max(const float* x, int64_t n, const char* where) {
  uint32_t largest = 0;  // patterns of magnitudes are ordered like the magnitudes, NaN above infinity
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  if (largest < 0x7f800000u) return std::bit_cast<float>(largest);
  const int64_t at = std::find_if(x, x + n, [](float value) { return !std::isfinite(value); }) - x;
  throw Error(ErrorCode::internal, where, std::to_string(x[at]) + " in column " + std::to_string(at), "finite values");
}

float scale_for(float absolute_max, float largest) { return std::max(absolute_max / largest, smallest_scale); }

float power_of_two_at_least(float x) {
  // Any mantissa bit carries into the exponent.
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x7fffffu) & 0x7f800000u);
}

void fp8_block_encode(const float* w, int64_t rows, int64_t columns, std::byte* codes, float* scales) {
  for (int64_t row = 0; row < rows; row += fp8_block)
    for (int64_t column = 0; column < columns; column += fp8_block) {
      const int64_t last_row = std::min(rows, row + fp8_block), width = std::min(columns - column, fp8_block);
      float largest = 0;
      for (int64_t r = row; r < last_row; ++r)
        largest = std::max(largest, absolute_max(w + r * columns + column, width, "FP8 block"));
      const float scale = largest == 0 ? 1.0f : scale_for(largest, e4m3_max);
      for (int64_t r = row; r < last_row; ++r)
        for (int64_t c = column; c < column + width; ++c)
          codes[r * columns + c] = std::byte{e4m3_encode(w[r * columns + c] / scale)};
      scales[row / fp8_block * fp8_blocks(columns) + column / fp8_block] = scale;
    }
}

void fp8_block_decode_row(const std::byte* codes, const std::byte* scales, int64_t row, int64_t columns, float* out) {
  const std::byte* row_codes = codes + row * columns;
  const std::byte* row_scales = scales + row / fp8_block * fp8_blocks(columns) * 4;
  for (int64_t column = 0; column < columns; ++column) {
    float scale;
    std::memcpy(&scale, row_scales + column / fp8_block * 4, 4);
    out[column] = e4m3_values[static_cast<uint8_t>(row_codes[column])] * scale;
  }
}

}  // namespace tandem::quant
