// The CPU kernels for avx512; see kernels.h.
#if defined(__x86_64__)
#define TANDEM_SIMD_LEVEL avx512
#define TANDEM_SIMD_AVX512
#include "ops/simd/table.inl.h"
#endif
