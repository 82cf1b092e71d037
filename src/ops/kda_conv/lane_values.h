// What one lane of a warp holds of a KDA head: TANDEM_KDA_DIM / 32 values side by side, moved in one piece where they
// are four. For kernels.
#pragma once

#include "device/kernel.h"

namespace tandem::ops {

constexpr int32_t kda_dim = TANDEM_KDA_DIM;
constexpr int32_t kda_lane_values = kda_dim / 32;
static_assert(kda_dim % 32 == 0 && kda_dim <= 128, "a KDA head is 32, 64, 96 or 128 wide");

// Addresses are multiples of N values.
template <int32_t N>
TANDEM_DEVICE void load_values(const float* from, float (&x)[N]) {
  if constexpr (N == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
  } else {
    for (int32_t i = 0; i < N; ++i) x[i] = from[i];
  }
}
template <int32_t N>
TANDEM_DEVICE void load_values(const device::bf16* from, float (&x)[N]) {
  if constexpr (N == 4) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    x[0] = device::first_of(v.x), x[1] = device::second_of(v.x);
    x[2] = device::first_of(v.y), x[3] = device::second_of(v.y);
  } else {
    for (int32_t i = 0; i < N; ++i) x[i] = device::to_float(from[i]);
  }
}
template <int32_t N>
TANDEM_DEVICE void store_values(float* to, const float (&x)[N]) {
  if constexpr (N == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
  } else {
    for (int32_t i = 0; i < N; ++i) to[i] = x[i];
  }
}
template <int32_t N>
TANDEM_DEVICE void store_values(device::bf16* to, const float (&x)[N]) {
  if constexpr (N == 4) {
    *reinterpret_cast<uint2*>(to) = make_uint2(device::pack_bf16(x[0], x[1]), device::pack_bf16(x[2], x[3]));
  } else {
    for (int32_t i = 0; i < N; ++i) to[i] = device::to_bf16(x[i]);
  }
}

}  // namespace tandem::ops
