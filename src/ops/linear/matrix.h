// A weight matrix as it is stored. Everything that multiplies by a weight takes one of these.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::ops {

enum class WeightFormat {
  f32,
  bf16,
  fp8_block,  // e4m3 codes with one fp32 scale for every 128x128 block (spec/model.md 8.2)
};

// Row-major [out_features, in_features]; a view, the data belongs to the checkpoint. Data may be unaligned. A view may
// be a part of a stored matrix: it then begins at row block_row (fp8_block) and at column first_column of it.
struct Matrix {
  WeightFormat format = WeightFormat::bf16;
  const std::byte* data = nullptr;
  const std::byte* block_scales = nullptr;  // fp8_block: fp32 [ceil(out/128), ceil(in/128)], may be unaligned
  int64_t out_features = 0;
  int64_t in_features = 0;
  int64_t block_row = 0;   // fp8_block: row of this view's first row in the stored matrix
  int64_t row_stride = 0;  // values from one stored row to the next; 0: in_features
  // Column of this view's first column in the stored matrix: slices of a sum begin where they begin there, and FP8
  // blocks lie as they lie there.
  int64_t first_column = 0;
  // Columns [0, leaf_columns) are summed as leaf 0, the rest as leaf 1, and the two sums are added (design.md 1, "two
  // leaves"). Equal to in_features where the sum is never shared by ranks.
  int64_t leaf_columns = 0;

  int64_t stride() const { return row_stride == 0 ? in_features : row_stride; }
};

// Rows [first, first + count), or columns [first, first + count), of m as a view of its own.
Matrix rows_of(const Matrix& m, int64_t first, int64_t count);
Matrix columns_of(const Matrix& m, int64_t first, int64_t count);

}  // namespace tandem::ops
