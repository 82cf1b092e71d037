// fp16 and bf16 as bit patterns: weight files and cache records store them, and the processor may have no instruction
// for either. Plain functions of a .cc file, so that every instruction-set level calls the same code.
#pragma once

#include <cstdint>

namespace tandem::quant {

// Exact. Infinities and NaN stay what they are.
float half_to_float(uint16_t bits);

// Round to nearest, ties to even; from 65,520 on the result is infinity; NaN gives a quiet NaN.
uint16_t float_to_half(float x);

// x rounded to the nearest bf16 value (ties to even), as fp32. NaN stays NaN.
float round_to_bf16(float x);

}  // namespace tandem::quant
