// Parts of a matrix.
#include "ops/linear/matrix.h"

#include <string>

#include "base/error.h"
#include "quant/exl3_tile.h"
#include "quant/nvfp4.h"

namespace tandem::ops {
namespace {

int64_t bits_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32: return 32;
    case WeightFormat::bf16: return 16;
    case WeightFormat::fp8_block: return 8;
    case WeightFormat::nvfp4: return 4;
    case WeightFormat::exl3: break;
  }
  throw Error(ErrorCode::internal, "matrix", "unknown weight format");
}

// A cut of [0, length) must begin and end between units, or where the matrix ends.
void check_cut(const char* what, int64_t length, int64_t first, int64_t count, int64_t unit) {
  if (first % unit == 0 && (count % unit == 0 || first + count == length)) return;
  throw Error(ErrorCode::internal, what, "[" + std::to_string(first) + ", " + std::to_string(first + count) + ")",
              "a part cut at multiples of " + std::to_string(unit));
}

}  // namespace

Matrix rows_of(const Matrix& m, int64_t first, int64_t count) {
  Matrix part = m;
  part.out_features = count;
  if (count == 0) return part;
  part.block_row += first;
  if (m.format == WeightFormat::exl3) {
    check_cut("rows of an EXL3 matrix", m.out_features, first, count, exl3_block);
    part.data += first / quant::exl3_tile * quant::exl3_tile_bytes(m.exl3.bits);
    part.exl3.svh += m.exl3.svh_is_signs ? first / 8 : 2 * first;
    return part;
  }
  part.data += first * m.stride() * bits_of(m.format) / 8;
  if (m.format == WeightFormat::nvfp4) part.block_scales += first * m.stride() / quant::nvfp4_group;
  return part;
}

Matrix columns_of(const Matrix& m, int64_t first, int64_t count) {
  Matrix part = m;
  part.row_stride = m.stride();
  part.in_features = part.leaf_columns = count;
  if (count == 0) return part;
  part.first_column += first;
  if (m.format == WeightFormat::exl3) {
    check_cut("columns of an EXL3 matrix", m.in_features, first, count, exl3_block);
    part.data += first / quant::exl3_tile * m.exl3.tile_stride * quant::exl3_tile_bytes(m.exl3.bits);
    part.exl3.suh += m.exl3.suh_is_signs ? first / 8 : 2 * first;
    return part;
  }
  if (m.format == WeightFormat::nvfp4) {
    check_cut("columns of an NVFP4 matrix", m.in_features, first, count, quant::nvfp4_group);
    part.block_scales += first / quant::nvfp4_group;
  }
  part.data += first * bits_of(m.format) / 8;
  return part;
}

}  // namespace tandem::ops
