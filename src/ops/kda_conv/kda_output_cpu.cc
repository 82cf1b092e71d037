// KDA's gated output norm on the CPU.
#include <algorithm>

#include "ops/kda_conv/kda_output.h"
#include "ops/norm/norm.h"
#include "ops/row_tasks.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {

void kda_output(device::Threads& threads, const KdaOutput& a) {
  const int64_t width = a.heads * a.dim;
  for_rows(threads, a.rows, std::max<int64_t>(1, 8192 / width), [&](int64_t row) {
    const Kernels& k = kernels();
    float* gate = a.gate + row * width;
    k.sigmoid(gate, width, gate);
    for (int64_t head = 0; head < a.heads; ++head) {
      float* o = a.o + row * width + head * a.dim;
      round_values(a.compute, RoundingPoint::kda_recurrent, o, a.dim);
      rms_norm(o, a.weight, a.eps, a.dim, o);
      k.multiply(o, gate + head * a.dim, 1.0f, a.dim, o);
      round_values(a.compute, RoundingPoint::kda_gated, o, a.dim);
    }
  });
}

}  // namespace tandem::ops
