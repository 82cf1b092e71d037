// Token embedding (spec/model.md 2.1, steps 1 and 2).
#pragma once

#include <cstdint>
#include <span>

#include "ops/linear/matrix.h"

namespace tandem::ops {

// out[r·out_stride + c·hidden + d] = table[tokens[r]][d] for c < copies. Tokens must be in range (the engine checks).
void embed(const Matrix& table, std::span<const int32_t> tokens, int64_t copies, float* out, int64_t out_stride);

// The part of a rank that holds rows first_token … of the table: out[r·hidden + d] for its own tokens, the other rows
// are left alone.
void embed_own(const Matrix& table, int64_t first_token, std::span<const int32_t> tokens, float* out);

}  // namespace tandem::ops
