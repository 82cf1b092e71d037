// EXL3 on the CPU: panels of 16 outputs are decoded once for all rows of a tile and multiplied as fp32.
#include "ops/linear/multiply.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "quant/exl3_tile.h"
#include "quant/hadamard.h"

namespace tandem::ops {
namespace {

constexpr int64_t tile = quant::exl3_tile;
constexpr int64_t most_rows = 64;                    // rows that share a decoded panel
constexpr int64_t panel_stride = slice_length + 16;  // not a power of two, whose rows would share cache sets

struct Buffers {
  alignas(64) float x[most_rows * slice_length];  // x' of a slice, in the panel's order
  alignas(64) float panel[tile * panel_stride];
  alignas(64) float part[most_rows * tile];  // a slice's sums of one panel
  alignas(64) float leaf[2][most_rows * exl3_block];
};
thread_local Buffers buffers;

// value[i] of fp16 numbers (finite) or of signs, `first` counted from the start of the vector.
void read_scales(const std::byte* stored, bool signs, int64_t first, int64_t count, float* value) {
  for (int64_t i = 0; i < count; ++i) {
    if (signs) {
      value[i] = static_cast<int>(stored[(first + i) / 8]) >> ((first + i) % 8) & 1 ? -1.0f : 1.0f;
      continue;
    }
    uint16_t half;
    std::memcpy(&half, stored + 2 * (first + i), 2);
    const float magnitude = std::bit_cast<float>((half & 0x7fffu) << 13) * 0x1p112f;  // exact, subnormals too
    value[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | (half & 0x8000u) << 16);
  }
}

// x' of columns [column, column + n) for `rows` rows of t from `row` on, n filled up to whole blocks with zeros.
void transform_inputs(const MatmulTile& t, int64_t row, int64_t rows, int64_t column, int64_t n) {
  const Exl3Parts& parts = t.w->exl3;
  const std::byte* scales = parts.suh + (parts.suh_is_signs ? column / 8 : 2 * column);
  for (int64_t r = 0; r < rows; ++r)
    kernels().exl3_inputs(
        {scales, parts.suh_is_signs, t.x + (row + r) * t.x_stride + column, n, buffers.x + r * slice_length});
}

// Rows and columns of x' against the panel of 16 outputs.
void multiply_panel(int64_t rows, int64_t columns) {
  Matrix panel;
  panel.format = WeightFormat::f32;
  panel.data = reinterpret_cast<const std::byte*>(buffers.panel);
  panel.out_features = tile;
  panel.in_features = panel.leaf_columns = columns;
  panel.row_stride = panel_stride;
  MatmulTile product;
  product.w = &panel;
  product.last_output = tile;
  product.last_column = columns;
  product.x = buffers.x;
  product.x_stride = slice_length;
  product.rows = rows;
  product.y = buffers.part;
  product.y_stride = tile;
  kernels().matmul(product);
}

// Adds columns [column, column + n), at most one slice, to sums [rows, 128] of the outputs from `output` on.
void add_slice(const MatmulTile& t, int64_t row, int64_t rows, int64_t output, int64_t column, int64_t n, bool first,
               float* sums) {
  const Exl3Parts& parts = t.w->exl3;
  const int64_t tile_bytes = quant::exl3_tile_bytes(parts.bits);
  const int64_t columns = (n + exl3_block - 1) / exl3_block * exl3_block;
  transform_inputs(t, row, rows, column, n);
  for (int64_t o = 0; o < exl3_block; o += tile) {
    const int64_t place = column / tile * parts.tile_stride + (output + o) / tile;
    const Exl3Tiles tiles{t.w->data + place * tile_bytes, parts.tile_stride * tile_bytes, columns / tile, parts.bits,
                          parts.codebook};
    if (rows <= kernels().exl3_most_rows) {
      kernels().exl3_sums({tiles, buffers.x, slice_length, rows, buffers.part});
    } else {
      kernels().decode_exl3(tiles, buffers.panel, panel_stride);
      multiply_panel(rows, columns);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float* part = buffers.part + r * tile;
      float* sum = sums + r * exl3_block + o;
      for (int64_t i = 0; i < tile; ++i) sum[i] = first ? part[i] : sum[i] + part[i];
    }
  }
}

// The sum of one leaf over columns [begin, end), transformed; false if it is empty.
bool leaf_sum(const MatmulTile& t, int64_t row, int64_t rows, int64_t output, int64_t begin, int64_t end, float* sums) {
  if (begin >= end) return false;
  for (int64_t column = begin; column < end;) {
    const int64_t place = t.w->first_column + column;
    const int64_t stop = std::min(end, column + slice_length - place % slice_length);
    add_slice(t, row, rows, output, column, stop - column, column == begin, sums);
    column = stop;
  }
  float scales[exl3_block] = {};
  const int64_t outputs = std::min(exl3_block, t.w->out_features - output);
  read_scales(t.w->exl3.svh, t.w->exl3.svh_is_signs, output, outputs, scales);
  quant::hadamard128(sums, rows);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < outputs; ++i) sums[r * exl3_block + i] *= scales[i];
  return true;
}

void multiply_exl3(const MatmulTile& t) {
  const int64_t cut = t.w->leaf_columns;
  for (int64_t row = 0; row < t.rows; row += most_rows) {
    const int64_t rows = std::min(most_rows, t.rows - row);
    for (int64_t output = t.first_output; output < t.last_output; output += exl3_block) {
      const bool has0 = leaf_sum(t, row, rows, output, t.first_column, std::min(cut, t.last_column), buffers.leaf[0]);
      const bool has1 = leaf_sum(t, row, rows, output, std::max(cut, t.first_column), t.last_column, buffers.leaf[1]);
      const int64_t outputs = std::min(exl3_block, t.last_output - output);
      for (int64_t r = 0; r < rows; ++r) {
        float* y = t.y + (row + r) * t.y_stride + output;
        const float *leaf0 = buffers.leaf[0] + r * exl3_block, *leaf1 = buffers.leaf[1] + r * exl3_block;
        for (int64_t i = 0; i < outputs; ++i)
          y[i] = has0 && has1 ? leaf0[i] + leaf1[i] : has0 ? leaf0[i] : has1 ? leaf1[i] : 0.0f;
      }
    }
  }
}

}  // namespace

void multiply(const MatmulTile& t) {
  if (t.w->format == WeightFormat::exl3) {
    multiply_exl3(t);
  } else {
    kernels().matmul(t);
  }
}

}  // namespace tandem::ops
