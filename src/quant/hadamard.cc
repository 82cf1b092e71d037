// Butterflies in a fixed order; hadamard.h says why.
#include "quant/hadamard.h"

#include <cmath>

namespace tandem::quant {
namespace {

template <int64_t stride, class Real>
void stage(Real* v, int64_t n) {
  for (int64_t base = 0; base < n; base += 2 * stride)
    for (int64_t i = base; i < base + stride; ++i) {
      const Real a = v[i], b = v[i + stride];
      v[i] = a + b;
      v[i + stride] = a - b;
    }
}

template <class Real>
void transform128(Real* v, int64_t blocks, Real factor) {
  for (int64_t block = 0; block < blocks; ++block, v += hadamard_block) {
    stage<1>(v, hadamard_block);
    stage<2>(v, hadamard_block);
    stage<4>(v, hadamard_block);
    stage<8>(v, hadamard_block);
    stage<16>(v, hadamard_block);
    stage<32>(v, hadamard_block);
    stage<64>(v, hadamard_block);
    for (int64_t i = 0; i < hadamard_block; ++i) v[i] *= factor;
  }
}

}  // namespace

void hadamard128(float* v, int64_t blocks) { transform128(v, blocks, hadamard_factor); }

void hadamard128(double* v, int64_t blocks) { transform128(v, blocks, 0.08838834764831845); }

void hadamard(float* v, int64_t n) {
  if (n == hadamard_block) return hadamard128(v);
  for (int64_t stride = 1; stride < n; stride *= 2)
    for (int64_t base = 0; base < n; base += 2 * stride)
      for (int64_t i = base; i < base + stride; ++i) {
        const float a = v[i], b = v[i + stride];
        v[i] = a + b;
        v[i + stride] = a - b;
      }
  const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
  for (int64_t i = 0; i < n; ++i) v[i] *= factor;
}

}  // namespace tandem::quant
