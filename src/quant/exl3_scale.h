// The global scale g at which the trellis represents a regularised matrix best (spec/quantization.md 2.5).
#pragma once

#include <cstdint>

#include "quant/exl3_encode.h"
#include "quant/exl3_tile_encoder.h"

namespace tandem::quant {

// Table 2.9: the best g for Gaussian weights.
double exl3_table_scale(Exl3Codebook codebook, int bits);

// `weights`: [in, out] in multiples of 128, RMS near 1.2437. full: 2.5 as it stands. small: only its fine search, about
// the table's g and on every third tile of the sample. none: the table. The result does not depend on the threads.
double exl3_search_scale(const float* weights, int64_t in, int64_t out, Exl3ScaleSearch search,
                         Exl3TileEncoder& encoder);

}  // namespace tandem::quant
