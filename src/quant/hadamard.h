// The Walsh–Hadamard transform that EXL3 weights and FP8 index keys are rotated by (spec/quantization.md 1.3,
// spec/model.md 4.6): natural (Sylvester) order, orthonormal, its own inverse.
//
// One arithmetic: stages of stride 1, 2, 4, … n/2, in each (a, b) ← (a + b, a − b), then one multiplication by the
// constant. Every output is the same tree of additions however the elements lie in registers, so scalar code, SIMD and
// a GPU give equal bits.
#pragma once

#include <cstdint>

namespace tandem::quant {

constexpr int64_t hadamard_block = 128;
constexpr float hadamard_factor = 0.088388347648f;  // 1/sqrt(128)

// Each of the `blocks` runs of 128 consecutive values, in place.
void hadamard128(float* v, int64_t blocks = 1);
void hadamard128(double* v, int64_t blocks = 1);  // for reference paths; the factor is 1/sqrt(128) in fp64

// One run of n values, n a power of two (small test models have narrower keys). Equal to hadamard128 for n = 128.
void hadamard(float* v, int64_t n);

}  // namespace tandem::quant
