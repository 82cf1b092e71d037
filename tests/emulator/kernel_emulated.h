// kernel.h for the host's compiler: a kernel becomes a function that the emulator calls once for each thread, each on a
// fiber of its own, and the instructions become what they compute.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "device/kernel_types.h"

struct uint2 {
  unsigned x, y;
};
struct uint3 {
  unsigned x, y, z;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace tandem::emulator {

// What the running fiber is.
struct Thread {
  uint3 thread, block, block_size, grid_size;
  unsigned char* shared;  // the block's dynamic shared memory
};
extern thread_local Thread* running;

void sync_block();
void sync_warp();
// Gives `bytes` of mine to the warp and returns those of all lanes, `stride` bytes apart, until the next exchange.
struct WarpView {
  const unsigned char* values;
  uint32_t lane;
  template <typename T>
  T of(uint32_t which) const {
    T value;
    std::memcpy(&value, values + which * 64, sizeof value);
    return value;
  }
};
WarpView exchange(const void* mine, uint32_t bytes);  // at most 64

using Body = void (*)(const void* args);
struct Registration {
  Registration(const char* source, const char* name, const char* defines, uint32_t max_threads, Body body);
};

// The bounds of a kernel's launches.
constexpr uint32_t max_threads(uint32_t threads, uint32_t /*blocks*/ = 1) { return threads; }

}  // namespace tandem::emulator

// CUDA's own names.
// NOLINTBEGIN(bugprone-reserved-identifier, bugprone-macro-parentheses)
#define threadIdx (::tandem::emulator::running->thread)
#define blockIdx (::tandem::emulator::running->block)
#define blockDim (::tandem::emulator::running->block_size)
#define gridDim (::tandem::emulator::running->grid_size)
#define __syncthreads() ::tandem::emulator::sync_block()
#define __syncwarp() ::tandem::emulator::sync_warp()
// Blocks run one after the other, so a block's static shared memory may be a variable of the thread that runs them.
#define __shared__ static thread_local
#define __restrict__ __restrict

#define TANDEM_KERNEL(kernel, Args, ...)                                                                  \
  static void kernel(const Args& args);                                                                   \
  static const ::tandem::emulator::Registration kernel##_registration(                                    \
      TANDEM_KERNEL_SOURCE, #kernel, TANDEM_KERNEL_DEFINES, ::tandem::emulator::max_threads(__VA_ARGS__), \
      [](const void* emulated_args) { kernel(*static_cast<const Args*>(emulated_args)); });               \
  static void kernel(const Args& args)
// Internal linkage: the same helper is compiled for several models' dimensions.
#define TANDEM_DEVICE [[maybe_unused]] static inline
#define TANDEM_SHARED(Type, name) Type* const name = reinterpret_cast<Type*>(::tandem::emulator::running->shared)
#define TANDEM_SHARED_TILES(name) TANDEM_SHARED(unsigned char, name)
// NOLINTEND(bugprone-reserved-identifier, bugprone-macro-parentheses)

namespace tandem::device {

inline uint32_t float_to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float bits_to_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline float exp2_(float x) { return std::exp2(x); }
inline float exp_(float x) { return exp2_(x * 1.4426950408889634f); }
inline float log_(float x) { return std::log(x); }
inline float fma_(float a, float b, float c) { return std::fma(a, b, c); }
inline float sqrt_(float x) { return std::sqrt(x); }
inline float reciprocal_(float x) { return 1.0f / x; }

template <typename T>
inline T shuffle_xor(T x, uint32_t mask) {
  const emulator::WarpView warp = emulator::exchange(&x, sizeof x);
  return warp.of<T>(warp.lane ^ mask);
}
template <typename T>
inline T shuffle(T x, uint32_t lane) {
  return emulator::exchange(&x, sizeof x).template of<T>(lane % 32);
}
inline uint32_t ballot(bool x) {
  const emulator::WarpView warp = emulator::exchange(&x, sizeof x);
  uint32_t bits = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) bits |= static_cast<uint32_t>(warp.of<bool>(lane)) << lane;
  return bits;
}

void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void load_matrices(uint32_t (&r)[4], const void* shared_row);
void load_matrices_transposed(uint32_t (&r)[4], const void* shared_row);

inline void copy_async_16(void* shared, const void* global, bool present = true) {
  if (present) {
    std::memcpy(shared, global, 16);
  } else {
    std::memset(shared, 0, 16);
  }
}
inline void copy_async_8(void* shared, const void* global, bool present = true) {
  if (present) {
    std::memcpy(shared, global, 8);
  } else {
    std::memset(shared, 0, 8);
  }
}
inline void copy_async_4(void* shared, const void* global, bool present = true) {
  if (present) {
    std::memcpy(shared, global, 4);
  } else {
    std::memset(shared, 0, 4);
  }
}
inline void commit_copies() {}
template <int Pending>
inline void wait_for_copies() {}
inline uint4 load_once_16(const void* global) {
  uint4 v;
  std::memcpy(&v, global, 16);
  return v;
}
template <typename T>
inline T atomic_add(T* at, T value) {  // fibers take turns at barriers only
  const T before = *at;
  *at += value;
  return before;
}

inline uint32_t largest_in_warp(uint32_t x) {
  const emulator::WarpView warp = emulator::exchange(&x, sizeof x);
  for (uint32_t lane = 0; lane < 32; ++lane) x = std::max(x, warp.of<uint32_t>(lane));
  return x;
}
inline uint32_t smallest_in_warp(uint32_t x) {
  const emulator::WarpView warp = emulator::exchange(&x, sizeof x);
  for (uint32_t lane = 0; lane < 32; ++lane) x = std::min(x, warp.of<uint32_t>(lane));
  return x;
}
inline int32_t count_bits(uint32_t x) { return std::popcount(x); }
inline double cosine(double x) { return std::cos(x); }
inline double sine(double x) { return std::sin(x); }

inline double add(double a, double b) { return a + b; }
inline double subtract(double a, double b) { return a - b; }
inline double multiply(double a, double b) { return a * b; }
inline double divide(double a, double b) { return a / b; }
inline double round_up(double x) { return std::ceil(x); }
inline uint64_t double_to_bits(double x) { return std::bit_cast<uint64_t>(x); }
inline double bits_to_double(uint64_t bits) { return std::bit_cast<double>(bits); }

}  // namespace tandem::device
