// A weight matrix as plain fp32 numbers, for the few places that cannot multiply by it as it is stored.
#pragma once

#include <vector>

#include "ops/linear/matrix.h"

namespace tandem::ops {

// The values of m, row-major [out_features, in_features]; m may be a part of a stored matrix. FP8 and NVFP4: the
// numbers that products use. EXL3: suh·svh·(H Wq H) with transforms in fp32 (spec/quantization.md 1.3), which products
// do not form; they agree within fp32 rounding. Allocates, and is as slow as plain code: for preparation only.
std::vector<float> decode(const Matrix& m);

}  // namespace tandem::ops
