// FP8 e4m3 (OCP: 4 exponent bits with bias 7, 3 mantissa bits, no infinity, 0x7f and 0xff are NaN, largest value 448)
// and weights in blocks of 128×128 with one fp32 scale each (spec/quantization.md 5.2, spec/model.md 8.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "quant/tensor_facts.h"

namespace tandem::quant {

// The values of the 256 codes. A plain array: constant data may be shared by all instruction-set levels.
extern const float e4m3_values[256];

constexpr float e4m3_max = 448.0f;

// Nearest code, ties to the even code, saturating at ±448 (infinities too). The sign of zero is kept; NaN gives 0x7f.
uint8_t e4m3_encode(float x);

// The smallest scale of a block or tile that is written: FLT_MIN, so that x / scale is defined for zero rows.
constexpr float smallest_scale = 1.17549435e-38f;

// max |x[i]| over n values. Throws Error(internal) that names `where` and the position unless all are finite.
float absolute_max(const float* x, int64_t n, const char* where);

// max(absolute_max / largest, smallest_scale), one fp32 division: the scale rule of every format here.
float scale_for(float absolute_max, float largest);

// The smallest power of two that is not less than x; x finite and at least smallest_scale, at most 2^127.
float power_of_two_at_least(float x);

constexpr int64_t fp8_block = 128;
constexpr int64_t fp8_blocks(int64_t n) { return (n + fp8_block - 1) / fp8_block; }

// Rows of fp32 w [rows, columns] as codes [rows, columns] and scales [fp8_blocks(rows), fp8_blocks(columns)]:
// scale = max |w| / 448 over the block (1 for a block of zeros), code = e4m3(w / scale). Throws Error(internal) for a
// value that is not finite.
void fp8_block_encode(const float* w, int64_t rows, int64_t columns, std::byte* codes, float* scales);

// out[c] = code × scale for row `row` of such a matrix, `columns` values; scales may be unaligned.
void fp8_block_decode_row(const std::byte* codes, const std::byte* scales, int64_t row, int64_t columns, float* out);

// How block scales are stored: most writers use fp32, some the type of the model's other weights.
enum class Fp8ScaleFormat { f32, bf16, f16 };
constexpr int64_t fp8_scale_bytes(Fp8ScaleFormat format) { return format == Fp8ScaleFormat::f32 ? 4 : 2; }

// Scale number `index`; `scales` may be unaligned.
float fp8_scale(const std::byte* scales, Fp8ScaleFormat format, int64_t index);

// The block scales of a weight.
struct Fp8Scales {
  const std::byte* data = nullptr;
  Fp8ScaleFormat format = Fp8ScaleFormat::f32;
  int64_t matrix = 0;  // number of scales of one [rows, columns] matrix
};

// From the tensor that holds the scales of an F8_E4M3 weight of this shape, [rows, columns] or [matrices, rows,
// columns]: F32, BF16 or F16, the last two dimensions in blocks. Throws Error(bad_file) naming the tensor for another
// dtype or shape, bytes missing, and a scale that is negative, infinite or NaN.
Fp8Scales read_fp8_scales(std::string_view prefix, const TensorFacts& scales, std::span<const int64_t> weight_shape);

}  // namespace tandem::quant
