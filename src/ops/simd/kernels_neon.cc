// The CPU kernels for neon; see kernels.h.
#if defined(__aarch64__)
#define TANDEM_SIMD_LEVEL neon
#define TANDEM_SIMD_NEON
#include "ops/simd/table.inl.h"
#endif
