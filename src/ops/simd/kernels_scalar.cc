// The CPU kernels for scalar; see kernels.h.
#define TANDEM_SIMD_LEVEL scalar
#include "ops/simd/table.inl.h"
