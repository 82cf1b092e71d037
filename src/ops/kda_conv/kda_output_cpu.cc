// KDA's gated output norm on the CPU.
#include <algorithm>

#include "ops/kda_conv/kda_output.h"
#include "ops/norm/norm.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {

void kda_output(device::Threads& threads, const KdaOutput& a) {
  const int64_t width = a.heads * a.dim;
  const int64_t rows_of_task = std::max<int64_t>(1, 8192 / width);
  threads.run((a.rows + rows_of_task - 1) / rows_of_task, [&](int64_t task) {
    const Kernels& k = kernels();
    const int64_t end = std::min(a.rows, (task + 1) * rows_of_task);
    for (int64_t row = task * rows_of_task; row < end; ++row) {
      float* gate = a.gate + row * width;
      k.sigmoid(gate, width, gate);
      for (int64_t head = 0; head < a.heads; ++head) {
        float* o = a.o + row * width + head * a.dim;
        round_values(a.compute, RoundingPoint::kda_recurrent, o, a.dim);
        rms_norm(o, a.weight, a.eps, a.dim, o);
        k.multiply(o, gate + head * a.dim, 1.0f, a.dim, o);
        round_values(a.compute, RoundingPoint::kda_gated, o, a.dim);
      }
    }
  });
}

}  // namespace tandem::ops
