// The loops of exl3_viterbi_kernels.h. Included once by each exl3_viterbi_<level>.cc, which defines TANDEM_EXL3_LEVEL
// (the namespace) and is compiled for that instruction set; nothing here may be inline in a shared namespace, or the
// linker could pick a version that the machine cannot run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#if defined(TANDEM_EXL3_AVX512) || defined(TANDEM_EXL3_AVX2)
#include <immintrin.h>
#endif

#include "quant/exl3_viterbi_kernels.h"

namespace tandem::quant::TANDEM_EXL3_LEVEL {
namespace {

// Costs are not negative, so their order is that of their bits: an integer minimum runs beside the multiply-adds.
#if defined(TANDEM_EXL3_AVX512)

constexpr int lanes = 16;
struct Vec {
  __m512 v;
};
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec candidate(Vec value, Vec weight, Vec cost) {
  const __m512 d = _mm512_sub_ps(value.v, weight.v);
  return {_mm512_fmadd_ps(d, d, cost.v)};
}
// As if the value were another each time, so that no round of `rounds` is left out.
inline void renew(Vec& a) { asm volatile("" : "+v"(a.v)); }
inline Vec smaller(Vec a, Vec b) {
  return {_mm512_castsi512_ps(_mm512_min_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
// a0 b0 a1 b1 … in two vectors.
inline void interleave(Vec& a, Vec& b) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  const __m512 first = _mm512_permutex2var_ps(a.v, low, b.v);
  b.v = _mm512_permutex2var_ps(a.v, high, b.v);
  a.v = first;
}

#elif defined(TANDEM_EXL3_AVX2)

constexpr int lanes = 8;
struct Vec {
  __m256 v;
};
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Vec set1(float x) { return {_mm256_set1_ps(x)}; }
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline Vec candidate(Vec value, Vec weight, Vec cost) {
  const __m256 d = _mm256_sub_ps(value.v, weight.v);
  return {_mm256_fmadd_ps(d, d, cost.v)};
}
inline void renew(Vec& a) { asm volatile("" : "+x"(a.v)); }
inline Vec smaller(Vec a, Vec b) {
  return {_mm256_castsi256_ps(_mm256_min_epi32(_mm256_castps_si256(a.v), _mm256_castps_si256(b.v)))};
}
inline void interleave(Vec& a, Vec& b) {
  const __m256 low = _mm256_unpacklo_ps(a.v, b.v), high = _mm256_unpackhi_ps(a.v, b.v);
  a.v = _mm256_permute2f128_ps(low, high, 0x20);
  b.v = _mm256_permute2f128_ps(low, high, 0x31);
}

#else

// As wide as AVX-512, so that any machine tests that order of the table.
constexpr int lanes = 16;
struct Vec {
  float v[lanes];
};
inline Vec load(const float* p) {
  Vec a;
  for (int i = 0; i < lanes; ++i) a.v[i] = p[i];
  return a;
}
inline Vec set1(float x) {
  Vec a;
  for (float& lane : a.v) lane = x;
  return a;
}
inline void store(float* p, Vec a) {
  for (int i = 0; i < lanes; ++i) p[i] = a.v[i];
}
inline Vec candidate(Vec value, Vec weight, Vec cost) {
  Vec a;
  for (int i = 0; i < lanes; ++i) {
    const float d = value.v[i] - weight.v[i];
    a.v[i] = __builtin_fmaf(d, d, cost.v[i]);
  }
  return a;
}
inline void renew(Vec& a) { asm volatile("" : "+m"(a)); }
inline Vec smaller(Vec a, Vec b) {
  for (int i = 0; i < lanes; ++i) a.v[i] = b.v[i] < a.v[i] ? b.v[i] : a.v[i];
  return a;
}
inline void interleave(Vec& a, Vec& b) {
  float both[2 * lanes];
  for (int i = 0; i < lanes; ++i) {
    both[2 * i] = a.v[i];
    both[2 * i + 1] = b.v[i];
  }
  a = load(both);
  b = load(both + lanes);
}

#endif

// 2^b ≥ lanes: one cost for all lanes.
template <int bits>
void step_by_branch(const float* table, const float* const* costs, const float* weights, float* const* next) {
  constexpr int64_t branches = int64_t{1} << bits, groups = int64_t{1} << (16 - 2 * bits);
  constexpr int64_t width = exl3_step_width(bits, lanes);
  constexpr int vectors = static_cast<int>(width) / lanes;
  const float *cost0 = costs[0], *cost1 = costs[1];
  const Vec w0 = set1(weights[0]), w1 = set1(weights[1]);
  for (int64_t j = 0; j < groups; ++j) {
    for (int64_t c = 0; c < branches; c += width) {
      Vec best0[vectors], best1[vectors];
      {
        const Vec before0 = set1(cost0[j]), before1 = set1(cost1[j]);
#pragma GCC unroll 2
        for (int i = 0; i < vectors; ++i, table += lanes) {
          const Vec value = load(table);
          best0[i] = candidate(value, w0, before0);
          best1[i] = candidate(value, w1, before1);
        }
      }
#pragma GCC unroll 4
      for (int64_t k = 1; k < branches; ++k) {
        const Vec before0 = set1(cost0[k * groups + j]), before1 = set1(cost1[k * groups + j]);
#pragma GCC unroll 2
        for (int i = 0; i < vectors; ++i, table += lanes) {
          const Vec value = load(table);
          best0[i] = smaller(best0[i], candidate(value, w0, before0));
          best1[i] = smaller(best1[i], candidate(value, w1, before1));
        }
      }
#pragma GCC unroll 2
      for (int i = 0; i < vectors; ++i) {
        store(next[0] + j * branches + c + i * lanes, best0[i]);
        store(next[1] + j * branches + c + i * lanes, best1[i]);
      }
    }
  }
}

// The best of every c for consecutive j to the order of edges, c fastest.
template <int branches>
[[gnu::always_inline]] inline void store_edges(Vec (&best)[branches], float* out) {
  constexpr int half = branches / 2;
#pragma GCC unroll 3
  for (int stage = 1; stage < branches; stage *= 2) {
    Vec shuffled[branches];
#pragma GCC unroll 4
    for (int i = 0; i < half; ++i) {
      shuffled[2 * i] = best[i];
      shuffled[2 * i + 1] = best[i + half];
      interleave(shuffled[2 * i], shuffled[2 * i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < branches; ++i) best[i] = shuffled[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < branches; ++i) store(out + i * lanes, best[i]);
}

// 2^b < lanes: consecutive j in the lanes.
template <int bits>
void step_by_group(const float* table, const float* const* costs, const float* weights, float* const* next) {
  constexpr int branches = 1 << bits;
  constexpr int64_t groups = int64_t{1} << (16 - 2 * bits);
  const Vec w0 = set1(weights[0]), w1 = set1(weights[1]);
  for (int64_t j = 0; j < groups; j += lanes) {
    Vec best0[branches], best1[branches];
    {
      const Vec before0 = load(costs[0] + j), before1 = load(costs[1] + j);
#pragma GCC unroll 8
      for (int c = 0; c < branches; ++c, table += lanes) {
        const Vec value = load(table);
        best0[c] = candidate(value, w0, before0);
        best1[c] = candidate(value, w1, before1);
      }
    }
#pragma GCC unroll 2
    for (int k = 1; k < branches; ++k) {
      const Vec before0 = load(costs[0] + k * groups + j), before1 = load(costs[1] + k * groups + j);
#pragma GCC unroll 8
      for (int c = 0; c < branches; ++c, table += lanes) {
        const Vec value = load(table);
        best0[c] = smaller(best0[c], candidate(value, w0, before0));
        best1[c] = smaller(best1[c], candidate(value, w1, before1));
      }
    }
    store_edges(best0, next[0] + j * branches);
    store_edges(best1, next[1] + j * branches);
  }
}

template <int bits>
void step(const float* table, const float* const* costs, const float* weights, float* const* next) {
  if constexpr ((1 << bits) >= lanes)
    step_by_branch<bits>(table, costs, weights, next);
  else
    step_by_group<bits>(table, costs, weights, next);
}

// The edges `back` weights before edge e are prefix << (16−b−back·b) | e >> back·b, prefix any back·b bits; branch k
// puts its bits before those of the prefix that it leads to.
template <int bits>
uint32_t trace(const float* table, const float* costs, const float* weights, uint32_t edge, uint16_t* states) {
  constexpr int steps = exl3_trace_steps(bits), branches = 1 << bits;
  float before[1 << (steps * bits)], after[1 << (steps * bits)];
  uint8_t chosen[steps][1 << (steps * bits)];
  for (uint32_t prefix = 0; prefix < 1u << (steps * bits); ++prefix)
    before[prefix] = costs[prefix << (16 - bits - steps * bits) | edge >> (steps * bits)];
  for (int step = 0; step < steps; ++step) {
    const int back = (steps - 1 - step) * bits;
    for (uint32_t prefix = 0; prefix < 1u << back; ++prefix) {
      const uint32_t to = prefix << (16 - bits - back) | edge >> back;
      const float* const values = table + exl3_table_place(bits, lanes, to);
      float best = __builtin_inff();
      uint32_t chosen_branch = 0;
      for (uint32_t k = 0; k < branches; ++k) {
        const float d = values[k * exl3_branch_stride(bits, lanes)] - weights[step];
        const float cost = __builtin_fmaf(d, d, before[k << back | prefix]);
        if (cost < best) {
          best = cost;
          chosen_branch = k;
        }
      }
      after[prefix] = best;
      chosen[step][prefix] = static_cast<uint8_t>(chosen_branch);
    }
    for (uint32_t prefix = 0; prefix < 1u << back; ++prefix) before[prefix] = after[prefix];
  }
  uint32_t prefix = 0;
  for (int step = steps - 1; step >= 0; --step) {
    const uint32_t k = chosen[step][prefix], state = k << (16 - bits) | edge;
    states[step] = static_cast<uint16_t>(state);
    edge = state >> bits;
    prefix |= k << ((steps - 1 - step) * bits);
  }
  return edge;
}

// Each out[i] is one chain of additions (or subtractions) in ascending k, whatever the vectors: the bits do not depend
// on the instruction set. The sums stay in registers.
template <int sign, class Real>
void combine(const Real* factors, int64_t factor_stride, const Real* rows, int64_t row_stride, int64_t count, Real* out,
             int64_t n) {
  typedef Real Few  // NOLINT(modernize-use-using): GCC takes these attributes of a dependent type in a typedef alone
      __attribute__((vector_size(32), aligned(sizeof(Real)), may_alias));
  constexpr int vectors = 8;
  constexpr int64_t width = 32 / sizeof(Real), block = vectors * width;
  int64_t i = 0;
  for (; i + block <= n; i += block) {
    Few sums[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[v] = *reinterpret_cast<const Few*>(out + i + v * width);
    for (int64_t k = 0; k < count; ++k) {
      const Real factor = sign * factors[k * factor_stride];
      const Real* row = rows + k * row_stride + i;
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[v] += factor * *reinterpret_cast<const Few*>(row + v * width);
    }
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) *reinterpret_cast<Few*>(out + i + v * width) = sums[v];
  }
  for (int64_t k = 0; k < count && i < n; ++k) {
    const Real factor = sign * factors[k * factor_stride];
    const Real* row = rows + k * row_stride;
    for (int64_t l = i; l < n; ++l) out[l] += factor * row[l];
  }
}

float rounds(int64_t count) {
  constexpr int chains = static_cast<int>(exl3_round) / lanes;
  float start[lanes];
  for (int l = 0; l < lanes; ++l) start[l] = static_cast<float>(l) * 0.125f;
  Vec best[chains], value = load(start);
  const Vec weight = set1(0.25f), cost = set1(0.5f);
  for (int i = 0; i < chains; ++i) best[i] = set1(static_cast<float>(1000 + i));
  for (int64_t round = 0; round < count; ++round) {
    for (int i = 0; i < chains; ++i) {
      renew(value);
      best[i] = smaller(best[i], candidate(value, weight, cost));
    }
  }
  float sum = 0, out[lanes];
  for (const Vec& b : best) {
    store(out, b);
    for (const float x : out) sum += x;
  }
  return sum;
}

}  // namespace

extern const Exl3Kernels kernels;
const Exl3Kernels kernels = {lanes,
                             {step<1>, step<2>, step<3>, step<4>, step<5>, step<6>, step<7>, step<8>},
                             {trace<1>, trace<2>, trace<3>, trace<4>, trace<5>, trace<6>, trace<7>, trace<8>},
                             combine<1, float>,
                             combine<-1, double>,
                             rounds};

}  // namespace tandem::quant::TANDEM_EXL3_LEVEL
