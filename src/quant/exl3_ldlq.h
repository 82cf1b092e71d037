// A regularised matrix to trellis states with error feedback, and how far off the result is (spec/quantization.md 2.6,
// 2.8). Matrices are [in, out] row-major in multiples of 128.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quant/exl3_finalise.h"
#include "quant/exl3_tile_encoder.h"

namespace tandem::quant {

// One tile in packed order; `corner` is its first weight, `stride` weights from row to row.
void exl3_cut_tile(const float* corner, int64_t stride, float* tile);

struct Exl3Coded {
  std::vector<std::byte> trellis;  // [in/16, out/16, 16·bits] int16
  std::vector<float> values;       // decoded, [in, out]
};

// Input rows from the last to the first, 16 at a time: each strip is fitted with what the errors of the rows after it
// add to its target (fp32, one order). A fallback Hessian adds nothing.
Exl3Coded exl3_ldlq(const std::vector<float>& weights, int64_t in, int64_t out, const Exl3Factor& factor,
                    Exl3TileEncoder& encoder);

// trace(EᵀHE) / max(trace(WᵀHW), 1e−8), E = weights − values; with a fallback ΣE² / max(ΣW², 1e−8).
double exl3_proxy_error(const std::vector<float>& weights, const std::vector<float>& values, int64_t in, int64_t out,
                        const Exl3Factor& factor, device::Threads& threads);

}  // namespace tandem::quant
