// The search for the best trellis path through one EXL3 tile, closed into a ring (spec/quantization.md 2.7).
//
// A state is (k << (16−b)) | e: b bits k that decide, and the edge e that is handed on. A step takes the cost of every
// edge to the next weight w,
//
//   next[e] = min over k of  fma(d, d, cost[s >> b]),   s = (k << (16−b)) | e,   d = values[s] − w,
//
// in fp32, ties to the smallest k. Every level below repeats exactly these operations, so all find the same path; a GPU
// can too. Back pointers are not kept: costs are, and the way back computes the few candidates that it passes again
// (the same operations, so the same winners).
#pragma once

#include <cstdint>
#include <memory>

#include "quant/exl3_codebook.h"
#include "quant/exl3_tile.h"

namespace tandem::quant {

struct Exl3Kernels;  // exl3_viterbi_kernels.h

enum class Exl3Level { scalar, avx2, avx512 };

bool exl3_level_available(Exl3Level level);
Exl3Level exl3_level();                // the best of this machine, or the one last set
void use_exl3_level(Exl3Level level);  // for tests and benchmarks; the caller makes sure it is available

// One thread's search, with its working memory: the costs of two tiles, 4 MiB each at 4 bits and below.
class Exl3Viterbi {
 public:
  Exl3Viterbi(Exl3Codebook codebook, int bits);

  // `tiles` has count·256 weights, finite and below 2^60, tile after tile in packed order; so has `states`. Each
  // tile's states form a ring: states[t] = (states[t−1] << b | new bits) mod 2^16, the first after the last.
  void encode(const float* tiles, int64_t count, uint16_t* states);

  // The best path that need not close: what closing the ring costs is measured against it.
  void encode_open(const float* tiles, int64_t count, uint16_t* states);

 private:
  struct Pass {
    int first = 0, count = 0;  // weights first, first + 1, … of the ring
    int kept = 0;              // steps of the way back
  };
  // The costs before step `step` of the pass: kept where a stretch of the way back begins, else in one of two places.
  float* costs(int tile, const Pass& pass, int step) const;
  void start(int tile, const Pass& pass, int64_t edge);  // −1: any edge
  void forward(const float* const* tiles, const Pass& pass);
  uint32_t cheapest(int tile, const Pass& pass) const;  // edge after the last step
  // From `edge` after the last step; states by weight. Returns the edge before the last `kept` steps.
  uint32_t trace(int tile, const float* weights, const Pass& pass, uint32_t edge, uint16_t* states) const;
  template <class Body>
  void by_pairs(const float* tiles, int64_t count, uint16_t* states, const Body& body);

  int bits_;
  int64_t edges_;
  const Exl3Kernels* kernels_;
  const float* table_;
  std::unique_ptr<float[]> memory_;
  float* passing_[2][2];  // of each tile, [edges], in turns
  float* kept_[2];        // of each tile, [256 / exl3_trace_steps + 1][edges]
};

}  // namespace tandem::quant
