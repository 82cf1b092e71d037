// The CPU kernels for avx2; see kernels.h.
#if defined(__x86_64__)
#define TANDEM_SIMD_LEVEL avx2
#define TANDEM_SIMD_AVX2
#include "ops/simd/table.inl.h"
#endif
