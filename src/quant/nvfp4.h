// NVFP4: e2m1 codes, one e4m3 scale for 16 consecutive values of a row, one fp32 scale for the tensor
// (spec/quantization.md 5.2, 5.4; spec/model.md 8.3).
//
// Arithmetic, one definition for weights and cache: value = (e2m1 · e4m3) · outer. The first product is exact in fp32,
// so a value is rounded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "quant/tensor_facts.h"

namespace tandem::quant {

constexpr int64_t nvfp4_group = 16;
constexpr float e2m1_max = 6.0f;
constexpr float nvfp4_range = 2688.0f;  // 6 · 448, the largest value for outer scale 1

// The values of the 16 codes: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same negated.
extern const float e2m1_values[16];

// Nearest code, ties to the even code, saturating at ±6. The sign is kept, also of what rounds to zero; NaN gives 7.
uint8_t e2m1_encode(float x);

enum class Nvfp4Dialect {
  modelopt,            // weight, weight_scale, weight_scale_2: value = e2m1 · weight_scale · weight_scale_2
  compressed_tensors,  // weight_packed, weight_scale, weight_global_scale: value = e2m1 · weight_scale / global
};
std::string_view name_of(Nvfp4Dialect dialect);  // "ModelOpt", "compressed-tensors"

// Which half of a byte holds the value with the even index. Low is usual and the default (spec/model.md 8.3: no file
// says which).
enum class NibbleOrder { low_first, high_first };

// A view of [rows, columns] = [out, in]; columns is a multiple of 16. Bytes may be unaligned.
struct Nvfp4Matrix {
  const std::byte* codes = nullptr;   // [rows, columns / 2]
  const std::byte* scales = nullptr;  // e4m3 [rows, columns / 16]
  float outer_scale = 1;              // what codes · scales is multiplied by, in both dialects
  int64_t rows = 0, columns = 0;
  Nvfp4Dialect dialect = Nvfp4Dialect::modelopt;
  NibbleOrder order = NibbleOrder::low_first;
};

// From the tensors that share `prefix`; the dialect is what their names say. rows and columns are the model's. Throws
// Error(bad_file) that names the tensor, what was found and what was expected: names of both dialects or of neither,
// missing scales, wrong dtypes or shapes, bytes missing, columns not a multiple of 16, scales that are NaN or negative,
// a global scale that is not finite and positive (or, compressed-tensors, whose reciprocal is not).
Nvfp4Matrix read_nvfp4(std::string_view prefix, std::span<const TensorFacts> tensors, int64_t rows, int64_t columns,
                       NibbleOrder order = NibbleOrder::low_first);

// Whether the tensors that share a prefix look like NVFP4, well formed or not: weight_packed, weight_scale_2,
// weight_global_scale or a weight of bytes is among them.
bool is_nvfp4(std::span<const TensorFacts> tensors);

// Rows [first, first + count) as fp32, out [count, columns].
void nvfp4_decode_rows(const Nvfp4Matrix& m, int64_t first, int64_t count, float* out);

// What an encoder writes: low nibble first, `outer_scale` as the factor (ModelOpt's weight_scale_2).
struct Nvfp4Data {
  std::vector<std::byte> codes, scales;
  float outer_scale = 1;
};

// Round to nearest: outer = max |w| / 2688 (1 for zeros), group scale = e4m3(max |group| / (6·outer)), code =
// e2m1(w / (scale·outer)); a group whose scale is 0 has codes 0. Throws Error(internal) for a value that is not finite.
Nvfp4Data nvfp4_encode(const float* w, int64_t rows, int64_t columns);

// One run of n values in groups of 16 (the last may be shorter) with a given outer scale > 0, finite values.
// codes: (n + 1) / 2 bytes, low nibble first; scales: (n + 15) / 16 bytes.
void nvfp4_encode_run(const float* x, int64_t n, float outer_scale, std::byte* codes, std::byte* scales);
void nvfp4_decode_run(const std::byte* codes, const std::byte* scales, float outer_scale, int64_t n, NibbleOrder order,
                      float* out);

}  // namespace tandem::quant
