// The gated output norm of KDA (spec/model.md 3.7).
#pragma once

#include <cstdint>

#include "device/threads.h"
#include "ops/rounding.h"

namespace tandem::ops {

// o[row, head] ← o·rsqrt(mean_d(o²) + eps)·weight[d]·sigmoid(gate), in place. o and gate [rows, heads·dim]; gate is
// overwritten.
struct KdaOutput {
  int64_t heads = 0, dim = 0, rows = 0;
  float* o = nullptr;
  float* gate = nullptr;
  const float* weight = nullptr;  // [dim], shared by all heads
  float eps = 1e-5f;
  Compute compute = Compute::f32;  // rounds o before its norm, and the result
};
void kda_output(device::Threads& threads, const KdaOutput& args);

}  // namespace tandem::ops
