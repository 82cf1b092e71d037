// Norm and rotation of the drafter's heads (spec/speculation.md 1.4): a block a row and part, a warp a head.
// Statistics, phase and rotation in fp32, cosine and sine in float64 as on the CPU, one rounding to bf16. Floor: x
// read, y written.
#include "device/kernel.h"
#include "ops/rope/rope_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;

constexpr int32_t head_dim = TANDEM_DRAFTER_HEAD_DIM, half = head_dim / 2, pairs_of_lane = (half + 31) / 32;

TANDEM_KERNEL(turn_heads, ops::RopeArgs, 256) {
  __shared__ float cosines[half], sines[half];
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  if (row >= *args.rows) return;
  const ops::RopePart& part = args.parts[blockIdx.y];
  const int32_t position = args.positions[row / args.rows_of_position] + row % args.rows_of_position;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), warps = static_cast<int32_t>(blockDim.x / 32);
  if (part.norm != nullptr) {
    for (int32_t j = static_cast<int32_t>(threadIdx.x); j < half; j += static_cast<int32_t>(blockDim.x)) {
      const float phase = static_cast<float>(position) * args.frequencies[j];
      cosines[j] = static_cast<float>(cosine(static_cast<double>(phase)));
      sines[j] = static_cast<float>(sine(static_cast<double>(phase)));
    }
    __syncthreads();
  }
  const int64_t to = args.slots == nullptr
                         ? row * part.y_stride
                         : args.slots[row] * args.slot_stride + position % args.ring_rows * part.y_stride;
  for (int32_t head = static_cast<int32_t>(threadIdx.x / 32); head < part.heads; head += warps) {
    const bf16* x = part.x + row * part.x_stride + head * head_dim;
    bf16* y = part.y + to + head * head_dim;
    float first[pairs_of_lane], second[pairs_of_lane], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < pairs_of_lane; ++i) {
      const int32_t j = lane + 32 * i;
      first[i] = j < half ? to_float(x[j]) : 0.0f;
      second[i] = j < half ? to_float(x[half + j]) : 0.0f;
      squares = fma_(first[i], first[i], squares);
      squares = fma_(second[i], second[i], squares);
    }
    const float factor = 1.0f / sqrt_(sum_over_warp(squares) / static_cast<float>(head_dim) + args.eps);
#pragma unroll
    for (int i = 0; i < pairs_of_lane; ++i) {
      const int32_t j = lane + 32 * i;
      if (j >= half) continue;
      float a = first[i], b = second[i];
      if (part.norm != nullptr) {
        a = round_to_bf16(a * factor * part.norm[j]);
        b = round_to_bf16(b * factor * part.norm[half + j]);
        const float turned = a * cosines[j] - b * sines[j];
        b = b * cosines[j] + a * sines[j];
        a = turned;
      }
      y[j] = to_bf16(a);
      y[half + j] = to_bf16(b);
    }
  }
}

}  // namespace
