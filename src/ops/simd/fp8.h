// The values of the 256 e4m3 codes (OCP FP8 E4M3: 4 exponent bits with bias 7, 3 mantissa bits, no infinity, 0x7f and
// 0xff are NaN). A plain table: constant data may be shared by all instruction-set levels.
#pragma once

namespace tandem::ops {

extern const float fp8_e4m3_values[256];

}  // namespace tandem::ops
