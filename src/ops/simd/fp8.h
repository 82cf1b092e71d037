// The e4m3 table of quant/ by the name that kernels know it by. Constant data may be shared by all instruction-set
// levels; the functions of quant/fp8.h may not be called in kernels_<level>.cc (vec16.h says why).
#pragma once

#include "quant/fp8.h"

namespace tandem::ops {

inline constexpr const float (&fp8_e4m3_values)[256] = quant::e4m3_values;

}  // namespace tandem::ops
