// Dot products against stored weights (kernels.h, "Sums"): slices, leaves and tiles. Part of kernels_<level>.cc.
#pragma once

#include "ops/simd/coded.inl.h"
#include "ops/simd/kernels.h"
#include "ops/simd/slice_sum.inl.h"
#include "ops/simd/vec16.h"

namespace tandem::ops::TANDEM_SIMD_LEVEL {

// Adds one slice for all rows of the tile to sums[r][o]; `first` slices of a leaf replace instead.
template <typename Load>
static inline void add_slice(const std::byte* const* w, int64_t outputs, const float* x, int64_t x_stride, int64_t rows,
                             int64_t n, bool first, float (*sums)[output_block]) {
  for (int64_t r = 0; r < rows; r += row_block) {
    const int64_t block = rows - r < row_block ? rows - r : row_block;
    float part[row_block][output_block];
    slice_sum_any<Load>(block, outputs, w, x + r * x_stride, x_stride, n, part);
    for (int64_t i = 0; i < block; ++i) {
      for (int64_t o = 0; o < outputs; ++o) sums[r + i][o] = first ? part[i][o] : sums[r + i][o] + part[i][o];
    }
  }
}

static inline void store_pair(float* p, Pair pair) {
  store(p, pair.first);
  store(p + 16, pair.second);
}

// The slice's weights as fp32 in `panel` (worth it when several row blocks use them, and mostly for what is coded).
static inline void fill_panel(const Matrix& w, int64_t output, int64_t column, int64_t n, float* panel) {
  if (is_coded(w)) return fill_coded_panel(w, output, column, n, panel);
  const std::byte* stored = w.data + (output * stored_columns(w) + column) * LoadBf16::bytes;
  int64_t k = 0;
  for (; k + group <= n; k += group) {
    __builtin_prefetch(stored + k * LoadBf16::bytes + prefetch_bytes);
    store_pair(panel + k, bf16_pair(stored + k * LoadBf16::bytes));
  }
  if (k == n) return;
  std::byte rest[group * LoadBf16::bytes] = {};
  std::memcpy(rest, stored + k * LoadBf16::bytes, static_cast<size_t>((n - k) * LoadBf16::bytes));
  store_pair(panel + k, bf16_pair(rest));
}

static inline void matmul_slice(const MatmulTile& t, int64_t output, int64_t outputs, int64_t column, int64_t n,
                                bool first, float (*sums)[output_block]) {
  const Matrix& w = *t.w;
  const float* x = t.x + column;
  const std::byte* rows[output_block];
  const bool panel_pays = is_coded(w) || (w.format == WeightFormat::bf16 && t.rows > row_block);
  if (panel_pays) {
    alignas(64) float panel[output_block][slice_length];
    for (int64_t o = 0; o < outputs; ++o) {
      fill_panel(w, output + o, column, n, panel[o]);
      rows[o] = reinterpret_cast<const std::byte*>(panel[o]);
    }
    return add_slice<LoadPanel>(rows, outputs, x, t.x_stride, t.rows, n, first, sums);
  }
  const int64_t bytes = w.format == WeightFormat::f32 ? LoadF32::bytes : LoadBf16::bytes;
  for (int64_t o = 0; o < outputs; ++o) rows[o] = w.data + ((output + o) * stored_columns(w) + column) * bytes;
  if (w.format == WeightFormat::f32) return add_slice<LoadF32>(rows, outputs, x, t.x_stride, t.rows, n, first, sums);
  add_slice<LoadBf16>(rows, outputs, x, t.x_stride, t.rows, n, first, sums);
}

// Where the slice of a column ends.
static inline int64_t slice_end(const Matrix& w, int64_t column) {
  return ((w.first_column + column) / slice_length + 1) * slice_length - w.first_column;
}

// Sum over columns [begin, end) of one leaf, slices ascending.
static inline void leaf_sum(const MatmulTile& t, int64_t output, int64_t outputs, int64_t begin, int64_t end,
                            float (*sums)[output_block]) {
  for (int64_t column = begin; column < end;) {
    const int64_t border = slice_end(*t.w, column);
    const int64_t stop = border < end ? border : end;
    matmul_slice(t, output, outputs, column, stop - column, column == begin, sums);
    column = stop;
  }
}

// One slice of one row against four outputs.
static inline void slice_of_four(const MatmulTile& t, int64_t output, int64_t column, int64_t n,
                                 float (&part)[row_block][output_block]) {
  const Matrix& w = *t.w;
  const std::byte* rows[output_block];
  if (w.format == WeightFormat::bf16) {
    const int64_t stride = stored_columns(w) * LoadBf16::bytes;
    for (int o = 0; o < output_block; ++o) rows[o] = w.data + (output + o) * stride + column * LoadBf16::bytes;
    return slice_sum<LoadBf16, 1, output_block>(rows, t.x + column, 0, n, part);
  }
  if (coded_sums_of_four(w, output, column, t.x + column, n, part[0])) return;
  alignas(64) float panel[output_block][slice_length];
  for (int o = 0; o < output_block; ++o) {
    fill_panel(w, output + o, column, n, panel[o]);
    rows[o] = reinterpret_cast<const std::byte*>(panel[o]);
  }
  slice_sum<LoadPanel, 1, output_block>(rows, t.x + column, 0, n, part);
}

// One row against four outputs at a time, the shape of decoding.
static inline void leaf_of_four(const MatmulTile& t, int64_t output, int64_t begin, int64_t end,
                                float (&sum)[output_block]) {
  for (int64_t column = begin; column < end;) {
    const int64_t border = slice_end(*t.w, column);
    const int64_t stop = border < end ? border : end;
    float part[row_block][output_block];
    slice_of_four(t, output, column, stop - column, part);
    for (int o = 0; o < output_block; ++o) sum[o] = column == begin ? part[0][o] : sum[o] + part[0][o];
    column = stop;
  }
}

static inline int64_t matmul_row(const MatmulTile& t, int64_t first_end, int64_t second_begin) {
  int64_t output = t.first_output;
  const bool has0 = t.first_column < first_end, has1 = second_begin < t.last_column;
  for (; output + output_block <= t.last_output; output += output_block) {
    float sum0[output_block] = {}, sum1[output_block] = {};
    if (has0) leaf_of_four(t, output, t.first_column, first_end, sum0);
    if (has1) leaf_of_four(t, output, second_begin, t.last_column, sum1);
    for (int o = 0; o < output_block; ++o)
      t.y[output + o] = has0 && has1 ? sum0[o] + sum1[o] : has0 ? sum0[o] : sum1[o];
  }
  return output;
}

// Many rows against a BF16, FP8 or NVFP4 matrix of one slice and one leaf: weights are unpacked once for all rows, and
// sums go straight to y.
static inline void matmul_panel(const MatmulTile& t, int64_t output) {
  const int64_t columns = t.last_column - t.first_column;
  alignas(64) float panel[output_block][slice_length];
  const std::byte* rows[output_block];
  for (int o = 0; o < output_block; ++o) {
    fill_panel(*t.w, output + o, t.first_column, columns, panel[o]);
    rows[o] = reinterpret_cast<const std::byte*>(panel[o]);
  }
  for (int64_t r = 0; r < t.rows; r += row_block) {
    const int64_t block = t.rows - r < row_block ? t.rows - r : row_block;
    float part[row_block][output_block];
    slice_sum_rows<LoadPanel, output_block>(block, rows, t.x + r * t.x_stride + t.first_column, t.x_stride, columns,
                                            part);
    for (int64_t i = 0; i < block; ++i) std::memcpy(t.y + (r + i) * t.y_stride + output, part[i], sizeof part[i]);
  }
}

// A few rows, as of several streams that decode together: the values of a slice are put in order once for all outputs,
// and BF16 weights are unpacked in place, at most twice. (With many rows the ordered values no longer stay in the first
// cache.)
constexpr int64_t few_rows = row_block > 1 ? 12 : 2;

// Where sums go: output o of row r to y[r·stride + o − first].
struct Sums {
  float* y;
  int64_t stride, first;
  float* at(int64_t row, int64_t output) const { return y + row * stride + output - first; }
};

// Columns [begin, begin + count) of t, within one slice of one leaf.
struct FewRows {
  const MatmulTile& t;
  int64_t begin, count;
  Sums to;
};

static inline int64_t ordered_stride(int64_t columns) { return (columns + group - 1) / group * group; }

// The values in the order of Pair, each row filled up to whole steps with zeros.
static inline void order_values(const FewRows& f, float* out) {
  const int64_t stride = ordered_stride(f.count);
  for (int64_t r = 0; r < f.t.rows; ++r) {
    const float* x = f.t.x + r * f.t.x_stride + f.begin;
    float* row = out + r * stride;
    int64_t k = 0;
    for (; k + group <= f.count; k += group) store_pair(row + k, float_pair(x + k));
    if (k == f.count) continue;
    float rest[group] = {};
    std::memcpy(rest, x + k, static_cast<size_t>(f.count - k) * sizeof(float));
    store_pair(row + k, float_pair(rest));
  }
}

// `outputs` ≤ output_block of them.
template <typename Load>
static inline void few_outputs(const FewRows& f, int64_t output, int64_t outputs, const std::byte* const* w,
                               const float* values, int64_t stride) {
  const int64_t blocks = (f.t.rows + row_block - 1) / row_block, even = (f.t.rows + blocks - 1) / blocks;
  for (int64_t r = 0; r < f.t.rows; r += even) {
    const int64_t block = f.t.rows - r < even ? f.t.rows - r : even;
    float part[row_block][output_block];
    slice_sum_any<Load>(block, outputs, w, values + r * stride, stride, f.count, part);
    for (int64_t i = 0; i < block; ++i)
      std::memcpy(f.to.at(r + i, output), part[i], static_cast<size_t>(outputs) * sizeof(float));
  }
}

static inline void few_rows_slice(const FewRows& f, int64_t first_output, int64_t last_output) {
  const Matrix& w = *f.t.w;
  const bool plain = w.format == WeightFormat::f32;  // values stay in their natural order
  alignas(64) float values[few_rows * slice_length];
  if (!plain) order_values(f, values);
  const int64_t stride = ordered_stride(f.count), bytes = plain ? LoadF32::bytes : LoadBf16::bytes;
  alignas(64) float panel[output_block][slice_length];
  const std::byte* rows[output_block];
  for (int64_t output = first_output; output < last_output; output += output_block) {
    const int64_t outputs = last_output - output < output_block ? last_output - output : output_block;
    for (int64_t o = 0; o < outputs; ++o) {
      if (is_coded(w)) fill_panel(w, output + o, f.begin, f.count, panel[o]);
      rows[o] = is_coded(w) ? reinterpret_cast<const std::byte*>(panel[o])
                            : w.data + ((output + o) * stored_columns(w) + f.begin) * bytes;
    }
    if (is_coded(w)) {
      few_outputs<LoadPanelOrdered>(f, output, outputs, rows, values, stride);
    } else if (plain) {
      few_outputs<LoadF32>(f, output, outputs, rows, f.t.x + f.begin, f.t.x_stride);
    } else {
      few_outputs<LoadBf16Ordered>(f, output, outputs, rows, values, stride);
    }
  }
}

// One leaf of a piece of the outputs, slices ascending.
constexpr int64_t few_outputs_piece = 64;
static inline void few_rows_leaf(const MatmulTile& t, int64_t begin, int64_t end, int64_t first_output,
                                 int64_t last_output, const Sums& to) {
  float part[few_rows * few_outputs_piece];
  for (int64_t column = begin; column < end;) {
    const int64_t border = slice_end(*t.w, column), stop = border < end ? border : end;
    const bool is_first = column == begin;
    const Sums slice = is_first ? to : Sums{part, few_outputs_piece, first_output};
    few_rows_slice({t, column, stop - column, slice}, first_output, last_output);
    for (int64_t r = 0; r < t.rows && !is_first; ++r) {
      for (int64_t o = first_output; o < last_output; ++o) *to.at(r, o) += *slice.at(r, o);
    }
    column = stop;
  }
}

static inline void matmul_few_rows(const MatmulTile& t, int64_t first_end, int64_t second_begin) {
  const bool has0 = t.first_column < first_end, has1 = second_begin < t.last_column;
  float other[few_rows * few_outputs_piece];
  for (int64_t output = t.first_output; output < t.last_output; output += few_outputs_piece) {
    const int64_t end = t.last_output - output < few_outputs_piece ? t.last_output : output + few_outputs_piece;
    const Sums to{t.y, t.y_stride, 0};
    if (has0) few_rows_leaf(t, t.first_column, first_end, output, end, to);
    if (!has1) continue;
    const Sums second = has0 ? Sums{other, few_outputs_piece, output} : to;
    few_rows_leaf(t, second_begin, t.last_column, output, end, second);
    for (int64_t r = 0; r < t.rows && has0; ++r) {
      for (int64_t o = output; o < end; ++o) *to.at(r, o) += *second.at(r, o);
    }
  }
}

static inline bool is_one_slice(const MatmulTile& t) {
  return t.first_column < t.last_column && slice_end(*t.w, t.first_column) >= t.last_column &&
         (t.w->leaf_columns <= t.first_column || t.w->leaf_columns >= t.last_column);
}

static void matmul(const MatmulTile& t) {
  const int64_t cut = t.w->leaf_columns;
  const int64_t first_end = cut < t.last_column ? cut : t.last_column;
  const int64_t second_begin = cut > t.first_column ? cut : t.first_column;
  int64_t start = t.first_output;
  if (t.rows == 1 && t.w->format != WeightFormat::f32) start = matmul_row(t, first_end, second_begin);
  if (t.rows > 1 && t.rows <= few_rows && t.first_column < t.last_column)
    return matmul_few_rows(t, first_end, second_begin);
  if (t.rows > few_rows && t.w->format != WeightFormat::f32 && is_one_slice(t)) {
    for (; start + output_block <= t.last_output; start += output_block) matmul_panel(t, start);
  }
  for (int64_t output = start; output < t.last_output; output += output_block) {
    const int64_t outputs = t.last_output - output < output_block ? t.last_output - output : output_block;
    float leaf0[max_tile_rows][output_block], leaf1[max_tile_rows][output_block];
    const bool has0 = t.first_column < first_end, has1 = second_begin < t.last_column;
    if (has0) leaf_sum(t, output, outputs, t.first_column, first_end, leaf0);
    if (has1) leaf_sum(t, output, outputs, second_begin, t.last_column, leaf1);
    for (int64_t r = 0; r < t.rows; ++r) {
      for (int64_t o = 0; o < outputs; ++o) {
        const float total = has0 && has1 ? leaf0[r][o] + leaf1[r][o] : has0 ? leaf0[r][o] : has1 ? leaf1[r][o] : 0.0f;
        t.y[r * t.y_stride + output + o] = total;
      }
    }
  }
}

static void dot_rows(const DotRows& d) {
  for (int64_t i = 0; i < d.count; i += output_block) {
    const int64_t outputs = d.count - i < output_block ? d.count - i : output_block;
    for (int64_t r = 0; r < d.rows; r += row_block) {
      const int64_t block = d.rows - r < row_block ? d.rows - r : row_block;
      float total[row_block][output_block];
      for (int64_t k = 0; k < d.k; k += slice_length) {
        const std::byte* w[output_block];
        for (int64_t o = 0; o < outputs; ++o) w[o] = reinterpret_cast<const std::byte*>(d.w_rows[i + o] + k);
        float part[row_block][output_block];
        const int64_t n = d.k - k < slice_length ? d.k - k : slice_length;
        slice_sum_any<LoadF32>(block, outputs, w, d.x + r * d.x_stride + k, d.x_stride, n, part);
        for (int64_t b = 0; b < block; ++b) {
          for (int64_t o = 0; o < outputs; ++o) total[b][o] = k == 0 ? part[b][o] : total[b][o] + part[b][o];
        }
      }
      for (int64_t b = 0; b < block; ++b) {
        for (int64_t o = 0; o < outputs; ++o) d.y[(r + b) * d.y_stride + i + o] = total[b][o];
      }
    }
  }
}

}  // namespace tandem::ops::TANDEM_SIMD_LEVEL
