// Parts of a matrix.
#include "ops/linear/matrix.h"

#include "base/error.h"

namespace tandem::ops {
namespace {

int64_t bytes_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32: return 4;
    case WeightFormat::bf16: return 2;
    case WeightFormat::fp8_block: return 1;
  }
  throw Error(ErrorCode::internal, "matrix", "unknown weight format");
}

}  // namespace

Matrix rows_of(const Matrix& m, int64_t first, int64_t count) {
  Matrix part = m;
  part.data += first * m.stride() * bytes_of(m.format);
  part.out_features = count;
  part.block_row += first;
  return part;
}

Matrix columns_of(const Matrix& m, int64_t first, int64_t count) {
  Matrix part = m;
  part.data += first * bytes_of(m.format);
  part.row_stride = m.stride();
  part.in_features = part.leaf_columns = count;
  part.first_column += first;
  return part;
}

}  // namespace tandem::ops
