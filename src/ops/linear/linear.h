// y = W x for several weight matrices at once: projections that do not depend on each other share one parallel region.
#pragma once

#include <cstdint>
#include <span>

#include "device/threads.h"
#include "ops/linear/matrix.h"
#include "ops/rounding.h"

namespace tandem::ops {

struct LinearCall {
  const Matrix* weight = nullptr;  // [out, in]
  const float* x = nullptr;        // [rows, in] at x_stride
  int64_t x_stride = 0;
  float* y = nullptr;  // [rows, out] at y_stride
  int64_t y_stride = 0;
  Compute compute = Compute::f32;  // bf16: y is rounded (RoundingPoint::linear), once, after leaf 0 + leaf 1
};

// Results of every call for `rows` rows; at most 16 calls. The sum's order is that of simd/kernels.h and does not
// depend on rows, threads or the other calls.
void linear(device::Threads& threads, std::span<const LinearCall> calls, int64_t rows);

// The same for one call with packed rows.
void linear(device::Threads& threads, const Matrix& weight, const float* x, float* y, int64_t rows,
            Compute compute = Compute::f32);

}  // namespace tandem::ops
