// A weight matrix as it is stored. Everything that multiplies by a weight takes one of these.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/exl3_codebook.h"
#include "quant/fp8.h"

namespace tandem::ops {

enum class WeightFormat {
  f32,
  bf16,
  fp8_block,  // e4m3 codes with one scale for every 128x128 block (spec/model.md 8.2)
  nvfp4,      // e2m1 codes, an e4m3 scale for 16 inputs, an fp32 scale for the matrix (spec/model.md 8.3)
  exl3,       // trellis tiles between two Hadamard transforms (spec/quantization.md 1)
};

constexpr int64_t exl3_block = 128;  // inputs or outputs that a Hadamard transform of EXL3 mixes

// What an EXL3 matrix has beside its tiles, which are Matrix::data. Stored sizes are multiples of exl3_block; what a
// smaller matrix is padded with is never read as a value of x and never written as an output.
struct Exl3Parts {
  int bits = 0;  // a weight, 1 to 8
  quant::Exl3Codebook codebook = quant::Exl3Codebook::three_inst;
  int64_t tile_stride = 0;         // tiles from one row of tiles to the next
  const std::byte* suh = nullptr;  // fp16 [in], or one bit an input, may be unaligned
  const std::byte* svh = nullptr;  // fp16 [out], or one bit an output
  bool suh_is_signs = false;       // legacy: bit set = −1
  bool svh_is_signs = false;
};

// Row-major [out_features, in_features]; a view, the data belongs to the checkpoint. Data may be unaligned. A view may
// be a part of a stored matrix: it then begins at row block_row (fp8_block) and at column first_column of it. EXL3 has
// no rows: its tiles lie [in / 16, out / 16], and parts of it are whole blocks of 128.
struct Matrix {
  WeightFormat format = WeightFormat::bf16;
  const std::byte* data = nullptr;
  // fp8_block: [ceil(out/128), ceil(in/128)] as scale_format says; nvfp4: e4m3 [out, stride() / 16]. May be unaligned.
  const std::byte* block_scales = nullptr;
  quant::Fp8ScaleFormat scale_format = quant::Fp8ScaleFormat::f32;
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
  float outer_scale = 1.0f;        // nvfp4: value = (e2m1 · e4m3) · outer_scale
  bool high_nibble_first = false;  // nvfp4: the value of the even column lies in the high half of a byte
  Exl3Parts exl3;

  int64_t stride() const { return row_stride == 0 ? in_features : row_stride; }
};

// Rows [first, first + count), or columns [first, first + count), of m as a view of its own. Where m cannot be cut
// there (NVFP4: columns that are no multiple of 16; EXL3: rows or columns that are no multiple of 128, but for the end
// of the matrix) it throws Error(internal).
Matrix rows_of(const Matrix& m, int64_t first, int64_t count);
Matrix columns_of(const Matrix& m, int64_t first, int64_t count);

}  // namespace tandem::ops
