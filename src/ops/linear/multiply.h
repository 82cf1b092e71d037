// One tile of y = W x for a weight of any format: what linear and experts call in their tasks.
#pragma once

#include "ops/simd/kernels.h"

namespace tandem::ops {

// Outputs that a tile must take together: first_output is a multiple of it, last_output too or the end of the matrix.
// 128 for EXL3, whose outputs are mixed by a transform.
inline int64_t output_unit(const Matrix& w) { return w.format == WeightFormat::exl3 ? exl3_block : 1; }

// As MatmulTile says. EXL3: first_column, last_column and leaf_columns too are multiples of 128 or the end of the
// matrix. Allocates nothing.
//
// EXL3's arithmetic, all of it in fp32 (activations are not rounded to fp16): x' = H(x ∘ suh) by blocks of 128; for
// each slice of 1,024 inputs the 16 lanes of kernels.h over x' and the decoded weights, value 16·i + p of the slice
// being input 16·i + exl3_panel_row(p); slices added in ascending order; the leaf's sum is svh ∘ H(sum) by blocks of
// 128 outputs, and then leaves are added (design.md 1: transforms act per leaf).
void multiply(const MatmulTile& t);

}  // namespace tandem::ops
