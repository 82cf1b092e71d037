// RMSNorm and LayerNorm of rows (spec/model.md 2.2, 4.4).
#pragma once

#include <cstdint>

namespace tandem::ops {

// y = x · rsqrt(mean(x²) + eps) ⊙ weight, all [n]; y may be x. weight nullptr: 1.
void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y);

// y = (x − mean) · rsqrt(mean((x − mean)²) + eps) ⊙ weight + bias, all [n]; y may be x.
void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t n, float* y);

}  // namespace tandem::ops
