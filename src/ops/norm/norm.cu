// RMSNorm and LayerNorm of bf16 rows: statistics and products in fp32, one rounding (spec/model.md 2.2, 4.4, 7.1).
// A block a row and part. Floor: the row read and written once.
#include "device/kernel.h"
#include "ops/norm/norm_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;

TANDEM_KERNEL(norm_rows, ops::NormArgs, 256) {
  __shared__ float scratch[32];
  const int64_t row = blockIdx.x;
  if (row >= *args.rows) return;
  const ops::NormPart& part = args.parts[blockIdx.y];
  const bf16* x = part.x + row * part.x_stride;
  bf16* y = part.y + row * part.y_stride;
  const int32_t width = part.width;
  const int32_t first = static_cast<int32_t>(threadIdx.x), step = static_cast<int32_t>(blockDim.x);

  float mean = 0.0f;
  if (part.bias != nullptr) {
    for (int32_t i = first; i < width; i += step) mean += to_float(x[i]);
    mean = sum_over_block(mean, scratch) / static_cast<float>(width);
  }
  float squares = 0.0f;
  for (int32_t i = first; i < width; i += step) {
    const float value = to_float(x[i]) - mean;
    squares = fma_(value, value, squares);
  }
  const float factor = 1.0f / sqrt_(sum_over_block(squares, scratch) / static_cast<float>(width) + part.eps);
  for (int32_t i = first; i < width; i += step) {
    float value = (to_float(x[i]) - mean) * factor;
    if (part.weight != nullptr) value *= part.weight[i];
    if (part.bias != nullptr) value += part.bias[i];
    y[i] = to_bf16(value);
  }
}

}  // namespace
