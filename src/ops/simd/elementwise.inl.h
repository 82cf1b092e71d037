// Loops over vectors of values (kernels.h). Part of kernels_<level>.cc.
#pragma once

#include "ops/simd/kernels.h"
#include "ops/simd/vec16.h"

namespace tandem::ops::TANDEM_SIMD_LEVEL {

// Calls body(load, store) for each group of 16 values: full groups, then one partial group whose missing lanes are 0.
template <typename Body>
static inline void for_lanes(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    body([i](const float* p) { return load(p + i); }, [i](float* p, Vec v) { store(p + i, v); });
  }
  if (i < n) {
    body([i, n](const float* p) { return load_partial(p + i, n - i); },
         [i, n](float* p, Vec v) { store_partial(p + i, v, n - i); });
  }
}

static float dot(const float* a, const float* b, int64_t n) {
  float total = 0.0f;
  for (int64_t begin = 0; begin < n; begin += slice_length) {
    const int64_t length = n - begin < slice_length ? n - begin : slice_length;
    Vec acc = zero();
    for_lanes(length, [&](auto get, auto) { acc = fma(get(a + begin), get(b + begin), acc); });
    const float part = reduce(acc);
    total = begin == 0 ? part : total + part;
  }
  return total;
}

static float sum(const float* a, int64_t n) {
  Vec acc = zero();
  for_lanes(n, [&](auto get, auto) { acc = add(acc, get(a)); });
  return reduce(acc);
}

static void exp_values(const float* x, int64_t n, float* y) {
  for_lanes(n, [&](auto get, auto put) { put(y, exp(get(x))); });
}
static void sigmoid_values(const float* x, int64_t n, float* y) {
  for_lanes(n, [&](auto get, auto put) { put(y, sigmoid(get(x))); });
}
static void silu_values(const float* x, int64_t n, float* y) {
  for_lanes(n, [&](auto get, auto put) { put(y, silu(get(x))); });
}
static void scale(const float* x, float factor, int64_t n, float* y) {
  for_lanes(n, [&](auto get, auto put) { put(y, mul(get(x), set1(factor))); });
}
static void multiply(const float* x, const float* z, float factor, int64_t n, float* y) {
  for_lanes(n, [&](auto get, auto put) { put(y, mul(mul(get(x), set1(factor)), get(z))); });
}
static void add_values(const float* x, const float* z, int64_t n, float* y) {
  for_lanes(n, [&](auto get, auto put) { put(y, add(get(x), get(z))); });
}
static void subtract(const float* x, const float* z, int64_t n, float* y) {
  for_lanes(n, [&](auto get, auto put) { put(y, sub(get(x), get(z))); });
}
static void accumulate(float factor, const float* x, int64_t n, float* y) {
  for_lanes(n, [&](auto get, auto put) { put(y, fma(set1(factor), get(x), get(y))); });
}
static void relu_accumulate(float weight, float factor, const float* x, int64_t n, float* y) {
  for_lanes(n, [&](auto get, auto put) { put(y, fma(set1(weight), vmax(mul(get(x), set1(factor)), zero()), get(y))); });
}
static void exp_minus(const float* x, float offset, int64_t n, float* y) {
  for_lanes(n, [&](auto get, auto put) { put(y, exp(sub(get(x), set1(offset)))); });
}
static void decayed(const float* x, const float* a, const float* b, int64_t n, float* y) {
  if (b == nullptr) {
    for_lanes(n, [&](auto get, auto put) { put(y, mul(get(x), exp(get(a)))); });
  } else {
    for_lanes(n, [&](auto get, auto put) { put(y, mul(get(x), exp(sub(get(a), get(b))))); });
  }
}
static void clamped_swiglu(const float* gate, const float* up, float limit, int64_t n, float* y) {
  const Vec high = set1(limit), low = set1(-limit);
  for_lanes(n, [&](auto get, auto put) { put(y, mul(silu(vmin(high, get(gate))), vmin(high, vmax(low, get(up))))); });
}
static void decay_gate(const float* f, const float* bias, float rate, float lower_bound, int64_t n, float* y) {
  for_lanes(
      n, [&](auto get, auto put) { put(y, mul(set1(lower_bound), sigmoid(mul(set1(rate), add(get(f), get(bias)))))); });
}
static void convolve_silu(const float* const* rows, const float* taps, int64_t taps_stride, int64_t kernel, int64_t n,
                          float* y) {
  int64_t i = 0;
  for (; i < n; i += 16) {
    const int64_t lanes = n - i < 16 ? n - i : 16;
    Vec acc = zero();
    for (int64_t tap = 0; tap < kernel; ++tap) {
      acc = lanes == 16
                ? fma(load(taps + tap * taps_stride + i), load(rows[tap] + i), acc)
                : fma(load_partial(taps + tap * taps_stride + i, lanes), load_partial(rows[tap] + i, lanes), acc);
    }
    if (lanes == 16) {
      store(y + i, silu(acc));
    } else {
      store_partial(y + i, silu(acc), lanes);
    }
  }
}
static void kda_pairs(const float* kt, const float* qt, const float* gt, const float* k, const float* g, int64_t stride,
                      int64_t count, int64_t n, float* a, float* b) {
  for (int64_t j = 0; j < count; ++j) {
    Vec sum_a = zero(), sum_b = zero();
    for_lanes(n, [&](auto get, auto) {
      const Vec faded = mul(get(k + j * stride), exp(sub(get(gt), get(g + j * stride))));
      sum_a = fma(get(kt), faded, sum_a);
      sum_b = fma(get(qt), faded, sum_b);
    });
    a[j] = reduce(sum_a);
    b[j] = reduce(sum_b);
  }
}

static void decode_bf16(const std::byte* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(y + i, load_bf16(x + 2 * i));
  if (i < n) store_partial(y + i, load_bf16_partial(x + 2 * i, n - i), n - i);
}

static void round_bf16_values(const float* x, int64_t n, float* y) {
  for_lanes(n, [&](auto get, auto put) { put(y, round_bf16(get(x))); });
}

// Ten sums, of vectors of two registers one half after the other: all would not fit into the registers.
template <int part>
static inline void fma_rounds_of(int64_t rounds, Vec (&sums)[10]) {
  float lanes[16];
  Part acc[10];
  for (int i = 0; i < 10; ++i) {
    store(lanes, set1(static_cast<float>(i)));
    acc[i] = part_load(lanes);
  }
  store(lanes, set1(0.999f));
  const Part factor = part_load(lanes);
  store(lanes, set1(0.001f));
  const Part addend = part_load(lanes);
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < 10; ++i) acc[i] = part_fma(acc[i], factor, addend);
  }
  for (int i = 0; i < 10; ++i) set_part(sums[i], part, acc[i]);
  if constexpr (part + 1 < parts) fma_rounds_of<part + 1>(rounds, sums);
}
static float fma_rounds(int64_t rounds) {
  Vec sums[10];
  fma_rounds_of<0>(rounds, sums);
  float total = 0.0f;
  for (int i = 0; i < 10; ++i) total += reduce(sums[i]);
  return total;
}

static uint64_t read_bytes(const std::byte* data, int64_t n) {
  uint64_t sums[8] = {};  // the compiler makes vectors of them
  int64_t i = 0;
  for (; i + 512 <= n; i += 512) {
    for (int64_t line = 0; line < 8; ++line) {
      uint64_t words[8];
      std::memcpy(words, data + i + 64 * line, 64);
      for (int w = 0; w < 8; ++w) sums[w] ^= words[w];
    }
  }
  for (; i < n; ++i) sums[0] ^= static_cast<uint64_t>(data[i]);
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
}

}  // namespace tandem::ops::TANDEM_SIMD_LEVEL
