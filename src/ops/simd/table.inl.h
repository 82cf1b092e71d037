// The table of one instruction-set level. Part of kernels_<level>.cc, which defines TANDEM_SIMD_LEVEL.
#pragma once

#include "ops/simd/combine.inl.h"
#include "ops/simd/elementwise.inl.h"
#include "ops/simd/exl3.inl.h"
#include "ops/simd/exl3_inputs.inl.h"
#include "ops/simd/matmul.inl.h"

namespace tandem::ops::TANDEM_SIMD_LEVEL {

extern const Kernels table;
const Kernels table = {
    SimdLevel::TANDEM_SIMD_LEVEL,
    matmul,
    decode_exl3,
    exl3_sums,
    exl3_inputs,
    exl3_most_rows,
    dot_rows,
    combine_rows,
    dot,
    sum,
    exp_values,
    sigmoid_values,
    silu_values,
    scale,
    multiply,
    add_values,
    subtract,
    accumulate,
    relu_accumulate,
    exp_minus,
    decayed,
    clamped_swiglu,
    decay_gate,
    convolve_silu,
    kda_pairs,
    decode_bf16,
    round_bf16_values,
    fma_rounds,
    read_bytes,
};

}  // namespace tandem::ops::TANDEM_SIMD_LEVEL
