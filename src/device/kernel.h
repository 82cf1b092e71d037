// What a kernel source may use beside plain C++: how a kernel and its shared memory are declared, and the few
// instructions that C++ has no words for. Every kernel is compiled twice: by NVRTC for a GPU (kernel_cuda.h) and by the
// host's compiler for the emulator that runs kernels in tests on machines without one (tests/emulator/).
//
// A kernel takes one struct of plain values, which host code fills:
//
//   TANDEM_KERNEL(scale_rows, ScaleArgs, 256) {          // at most 256 threads a block; (…, 256, 2): and registers
//                                                        // for two blocks on a multiprocessor
//     TANDEM_SHARED(float, row);                          // the launch's dynamic shared memory, as floats
//     for (uint32_t i = threadIdx.x; i < args.width; i += blockDim.x) row[i] = to_float(args.x[blockIdx.x * args.width
//     + i]);
//     __syncthreads();
//     ...
//   }
//
// Rules: all 32 lanes of a warp take part in every warp operation and all threads of a block in every __syncthreads();
// a kernel that does not need more rows returns before its first barrier, by whole blocks. Sums have a fixed order
// (design.md 1): no floating-point atomics. Kernels and helper functions, which are TANDEM_DEVICE, stand in a namespace
// without a name.
#pragma once

#include "device/kernel_types.h"

#if defined(TANDEM_KERNEL_EMULATOR)
#include TANDEM_KERNEL_EMULATOR  // tests/emulator/kernel_emulated.h
#else
#include "device/kernel_cuda.h"
#endif

// The model's dimensions that kernels are specialised on; device::model_defines() gives them. Defaults: those of
// GLM-5.3-Flash.
#ifndef TANDEM_KDA_DIM
#define TANDEM_KDA_DIM 128  // kda head_dim, keys and values
#endif
#ifndef TANDEM_KV_LORA_RANK
#define TANDEM_KV_LORA_RANK 512
#endif
#ifndef TANDEM_INDEX_HEAD_DIM
#define TANDEM_INDEX_HEAD_DIM 128
#endif
#ifndef TANDEM_INDEX_KPOOL
#define TANDEM_INDEX_KPOOL 4
#endif
#ifndef TANDEM_DRAFTER_HEAD_DIM
#define TANDEM_DRAFTER_HEAD_DIM 128
#endif

namespace tandem::device {

TANDEM_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp_(-x)); }
TANDEM_DEVICE float silu(float x) { return x * sigmoid(x); }
TANDEM_DEVICE float to_float(bf16 x) { return bits_to_float(static_cast<uint32_t>(x.bits) << 16); }
// Round to nearest, ties to even; NaN stays NaN.
#if defined(TANDEM_KERNEL_EMULATOR)
TANDEM_DEVICE bf16 to_bf16(float x) {
  const uint32_t bits = float_to_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
// Two values side by side, the first in the low half.
TANDEM_DEVICE uint32_t pack_bf16(float first, float second) {
  return static_cast<uint32_t>(to_bf16(first).bits) | static_cast<uint32_t>(to_bf16(second).bits) << 16;
}
#else
TANDEM_DEVICE bf16 to_bf16(float x) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return {bits};
}
TANDEM_DEVICE uint32_t pack_bf16(float first, float second) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
#endif
TANDEM_DEVICE float round_to_bf16(float x) { return to_float(to_bf16(x)); }
TANDEM_DEVICE float first_of(uint32_t pair) { return bits_to_float(pair << 16); }
TANDEM_DEVICE float second_of(uint32_t pair) { return bits_to_float(pair & 0xffff0000u); }

// The sum over a warp by a fixed tree; every lane gets it.
TANDEM_DEVICE float sum_over_warp(float x) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}
TANDEM_DEVICE float max_over_warp(float x) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    const float other = shuffle_xor(x, mask);
    x = other > x ? other : x;
  }
  return x;
}
// The sum over a block of whole warps, at most 1,024 threads, by a fixed tree; every thread gets it. `scratch`: 32
// floats of shared memory that nobody else uses between two barriers.
TANDEM_DEVICE float sum_over_block(float x, float* scratch) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  x = sum_over_warp(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = sum_over_warp(lane < warps ? scratch[lane] : 0.0f);
  __syncthreads();
  return x;
}

}  // namespace tandem::device
