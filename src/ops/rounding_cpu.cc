// Roundings to bf16 on the CPU, which keeps the values in fp32 memory.
#include <algorithm>

#include "ops/rounding.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {

void round_to_bf16(float* values, int64_t n) { kernels().round_bf16(values, n, values); }

void round_values(device::Threads& threads, Compute compute, RoundingPoint point, float* values, int64_t count) {
  if (compute == Compute::f32) return;
  const int64_t piece = 16384;  // values of a task, a few microseconds
  threads.run((count + piece - 1) / piece, [&](int64_t task) {
    round_values(compute, point, values + task * piece, std::min(piece, count - task * piece));
  });
}

}  // namespace tandem::ops
