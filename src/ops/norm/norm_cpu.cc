// RMSNorm and LayerNorm on the CPU.
#include <cmath>

#include "ops/norm/norm.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
  const Kernels& k = kernels();
  const float factor = 1.0f / std::sqrt(k.dot(x, x, n) / static_cast<float>(n) + eps);
  if (weight == nullptr) {
    k.scale(x, factor, n, y);
  } else {
    k.multiply(x, weight, factor, n, y);
  }
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t n, float* y) {
  const Kernels& k = kernels();
  const float mean = k.sum(x, n) / static_cast<float>(n);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] - mean;
  const float factor = 1.0f / std::sqrt(k.dot(y, y, n) / static_cast<float>(n) + eps);
  k.multiply(y, weight, factor, n, y);
  k.add(y, bias, n, y);
}

}  // namespace tandem::ops
