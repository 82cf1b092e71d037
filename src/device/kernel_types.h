// What host code and kernel sources both need: integers by width and the bf16 type. Kernel sources are compiled by
// NVRTC, which has no standard headers (design.md 6: "they include nothing but our own headers").
#pragma once

#if defined(__CUDACC_RTC__)
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#else
#include <cstdint>
#endif

// For functions of headers that host code and kernels share: NVRTC refuses functions that are not marked.
#if defined(__CUDACC__)
#define TANDEM_HOST_DEVICE __host__ __device__
#else
#define TANDEM_HOST_DEVICE
#endif

namespace tandem::device {

// A bfloat16 value in memory.
struct bf16 {
  uint16_t bits;
};

}  // namespace tandem::device
