// The inner loops of the trellis search, compiled once for every instruction set; exl3_viterbi.cc picks one.
#pragma once

#include <cstdint>

namespace tandem::quant {

constexpr int exl3_step_tiles = 2;  // searched side by side: they share the loads of the codebook

struct Exl3Kernels {
  int lanes;
  // One weight of two tiles. `table` is the codebook in the order in which the step reads it (below). step[bits − 1].
  void (*step[8])(const float* table, const float* const* costs, const float* weights, float* const* next);
  // The smallest k of the cheapest candidate of `edge`.
  uint32_t (*branch)(const float* values, int bits, const float* costs, float weight, uint32_t edge);
  // out[i] += Σ over k < count of factors[k·factor_stride]·rows[k·row_stride + i], ascending k, products rounded.
  void (*add_rows)(const float* factors, int64_t factor_stride, const float* rows, int64_t row_stride, int64_t count,
                   float* out, int64_t n);
  void (*subtract_rows)(const double* factors, int64_t factor_stride, const double* rows, int64_t row_stride,
                        int64_t count, double* out, int64_t n);  // out[i] −= …
  // `rounds` times subtract, multiply-add and minimum on exl3_round candidates in registers: what a machine can do.
  float (*rounds)(int64_t rounds);
};

constexpr int64_t exl3_round = 16 * 4;

// With e = (j << b) | c, all candidates of an edge come from the costs k << (16−2b) | j. Where 2^b fills a vector, its
// lanes are c, and the order is [j][k][c]. For fewer bits its lanes are consecutive j, and the order is
// [j / lanes][k][c][j mod lanes].
inline int64_t exl3_table_place(int bits, int lanes, uint32_t state) {
  const int64_t k = state >> (16 - bits), branches = int64_t{1} << bits;
  const int64_t edge = state & ((1u << (16 - bits)) - 1u), j = edge >> bits, c = edge & (branches - 1);
  if (branches >= lanes) return (j * branches + k) * branches + c;
  return (((j / lanes) * branches + k) * branches + c) * lanes + j % lanes;
}

}  // namespace tandem::quant
