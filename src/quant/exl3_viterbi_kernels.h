// The inner loops of the trellis search, compiled once for every instruction set; exl3_viterbi.cc picks one.
#pragma once

#include <cstdint>

namespace tandem::quant {

constexpr int exl3_step_tiles = 2;  // searched side by side: they share the loads of the codebook

struct Exl3Kernels {
  int lanes;
  // One weight of two tiles. `table` is the codebook in the order in which the step reads it (below). step[bits − 1].
  void (*step[8])(const float* table, const float* const* costs, const float* weights, float* const* next);
  // The way back over exl3_trace_steps(bits) weights: `costs` before the first of them, the edge after the last. Fills
  // their states and returns the edge before the first. trace[bits − 1].
  uint32_t (*trace[8])(const float* table, const float* costs, const float* weights, uint32_t edge, uint16_t* states);
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
// lanes are c, up to two vectors are worked on at a time, and the order is [j][c / width][k][c mod width]. For fewer
// bits the lanes are consecutive j, and the order is [j / lanes][k][c][j mod lanes]. A step reads from end to end.
constexpr int64_t exl3_step_width(int bits, int lanes) {
  return int64_t{1} << bits >= 2 * lanes ? 2 * lanes : int64_t{1} << bits;
}

inline int64_t exl3_table_place(int bits, int lanes, uint32_t state) {
  const int64_t k = state >> (16 - bits), branches = int64_t{1} << bits, width = exl3_step_width(bits, lanes);
  const int64_t edge = state & ((1u << (16 - bits)) - 1u), j = edge >> bits, c = edge & (branches - 1);
  if (branches >= lanes) return ((j * (branches / width) + c / width) * branches + k) * width + c % width;
  return (((j / lanes) * branches + k) * branches + c) * lanes + j % lanes;
}

// From the place of a state with k to that with k + 1.
constexpr int64_t exl3_branch_stride(int bits, int lanes) {
  const int64_t branches = int64_t{1} << bits;
  return branches >= lanes ? exl3_step_width(bits, lanes) : branches * lanes;
}

// Costs are kept before every so many weights. Those between are computed again for the edges from which the path can
// have come, 256 at most: for few bits the kept costs would not fit into the caches.
constexpr int exl3_trace_steps(int bits) { return bits == 1 ? 8 : bits == 2 ? 4 : bits == 3 ? 2 : 1; }

}  // namespace tandem::quant
