// kernel.h for NVRTC (and nvcc). Instructions by inline PTX; every target from sm_90 on has them.
#pragma once

#include "device/kernel_types.h"

// Kernels stand in the source's unnamed namespace, where even extern "C" would get a mangled name that nobody could
// load it by: so the kernel itself stands between two parts of that namespace and calls its body.
#define TANDEM_KERNEL(name, Args, ...)                                                                \
  TANDEM_DEVICE void name##_body(const Args& args);                                                   \
  }                                                                                                   \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ Args args) { \
    name##_body(args);                                                                                \
  }                                                                                                   \
  namespace {                                                                                         \
  TANDEM_DEVICE void name##_body(const Args& args)
#define TANDEM_DEVICE __device__ __forceinline__
// Dynamic shared memory of the launch, aligned to 128 bytes; once in a kernel, every use sees the same memory.
#define TANDEM_SHARED(Type, name)                                        \
  extern __shared__ __align__(128) unsigned char tandem_shared_memory[]; \
  Type* const name = reinterpret_cast<Type*>(tandem_shared_memory)
// The same for tiles of warp groups (device/warpgroup.h), aligned to 1,024 bytes, which may cost up to 1 KiB more.
#define TANDEM_SHARED_TILES(name) extern __shared__ __align__(1024) unsigned char name[]

namespace tandem::device {

TANDEM_DEVICE uint32_t float_to_bits(float x) { return __float_as_uint(x); }
TANDEM_DEVICE float bits_to_float(uint32_t bits) { return __uint_as_float(bits); }

TANDEM_DEVICE float exp2_(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TANDEM_DEVICE float exp_(float x) { return exp2_(x * 1.4426950408889634f); }
TANDEM_DEVICE float log_(float x) { return logf(x); }
TANDEM_DEVICE float fma_(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TANDEM_DEVICE float sqrt_(float x) { return __fsqrt_rn(x); }

// Warp operations; all 32 lanes take part.
TANDEM_DEVICE float shuffle_xor(float x, uint32_t mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
TANDEM_DEVICE uint32_t shuffle_xor(uint32_t x, uint32_t mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
TANDEM_DEVICE int32_t shuffle_xor(int32_t x, uint32_t mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
TANDEM_DEVICE float shuffle(float x, uint32_t lane) { return __shfl_sync(0xffffffffu, x, lane); }
TANDEM_DEVICE uint32_t shuffle(uint32_t x, uint32_t lane) { return __shfl_sync(0xffffffffu, x, lane); }
TANDEM_DEVICE int32_t shuffle(int32_t x, uint32_t lane) { return __shfl_sync(0xffffffffu, x, lane); }
TANDEM_DEVICE uint32_t ballot(bool x) { return __ballot_sync(0xffffffffu, x); }

// d += a b: a [16, 16] and b [16, 8] bf16 pairs, d [16, 8] fp32 (PTX mma.m16n8k16; lane l holds of a rows l/4 and l/4 +
// 8, columns 2·(l%4) + {0, 1} and 8 more: a0 = (row, low), a1 = (row + 8, low), a2 = (row, high), a3 = (row + 8, high);
// of b column l/4, rows 2·(l%4) + {0, 1} and 8 more; of d row l/4 columns 2·(l%4) + {0, 1}, then row l/4 + 8).
TANDEM_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

TANDEM_DEVICE uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Four 8×8 matrices of 16-bit values: lane l gives the address of row l % 8 of matrix l / 8 (16 bytes, aligned); r[i]
// is the pair (row l / 4, columns 2·(l%4) + {0, 1}) of matrix i.
TANDEM_DEVICE void load_matrices(uint32_t (&r)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared_row))
               : "memory");
}
// The same of the transposed matrices: r[i] is the pair (rows 2·(l%4) + {0, 1}, column l / 4).
TANDEM_DEVICE void load_matrices_transposed(uint32_t (&r)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared_row))
               : "memory");
}

// 16 bytes from global to shared memory in the background, both aligned to 16; zeros where `present` is false.
TANDEM_DEVICE void copy_async_16(void* shared, const void* global, bool present = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(present ? 16 : 0)
               : "memory");
}
TANDEM_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `Pending` of this thread's groups are under way; the block still needs a barrier.
template <int Pending>
TANDEM_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// 8 or 4 bytes likewise.
TANDEM_DEVICE void copy_async_8(void* shared, const void* global, bool present = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(present ? 8 : 0)
               : "memory");
}
TANDEM_DEVICE void copy_async_4(void* shared, const void* global, bool present = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(present ? 4 : 0)
               : "memory");
}

// 16 bytes that are read once: they need not stay in the first cache.
TANDEM_DEVICE uint4 load_once_16(const void* global) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(global));
  return v;
}

// Integers only (sums of floats have an order).
TANDEM_DEVICE int32_t atomic_add(int32_t* at, int32_t value) { return atomicAdd(at, value); }
TANDEM_DEVICE uint32_t atomic_add(uint32_t* at, uint32_t value) { return atomicAdd(at, value); }

// Over a warp, all 32 lanes; every lane gets it.
TANDEM_DEVICE uint32_t largest_in_warp(uint32_t x) { return __reduce_max_sync(0xffffffffu, x); }
TANDEM_DEVICE uint32_t smallest_in_warp(uint32_t x) { return __reduce_min_sync(0xffffffffu, x); }
TANDEM_DEVICE int32_t count_bits(uint32_t x) { return __popc(x); }

// Cosine and sine in float64, for phases whose range fp32 has no digits for.
TANDEM_DEVICE double cosine(double x) { return cos(x); }
TANDEM_DEVICE double sine(double x) { return sin(x); }

// 1 / x to one unit in the last place.
TANDEM_DEVICE float reciprocal_(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// float64 operations that are never fused, so that they give the host's bits (base/portable_math.h).
TANDEM_DEVICE double add(double a, double b) { return __dadd_rn(a, b); }
TANDEM_DEVICE double subtract(double a, double b) { return __dsub_rn(a, b); }
TANDEM_DEVICE double multiply(double a, double b) { return __dmul_rn(a, b); }
TANDEM_DEVICE double divide(double a, double b) { return __ddiv_rn(a, b); }
TANDEM_DEVICE double round_up(double x) { return ceil(x); }
TANDEM_DEVICE uint64_t double_to_bits(double x) { return static_cast<uint64_t>(__double_as_longlong(x)); }
TANDEM_DEVICE double bits_to_double(uint64_t bits) { return __longlong_as_double(static_cast<long long>(bits)); }
TANDEM_DEVICE uint64_t atomic_add(uint64_t* at, uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}

}  // namespace tandem::device
