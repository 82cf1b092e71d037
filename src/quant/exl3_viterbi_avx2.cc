// The trellis search for avx2; see exl3_viterbi_kernels.h.
#if defined(__x86_64__)
#define TANDEM_EXL3_LEVEL avx2
#define TANDEM_EXL3_AVX2
#include "quant/exl3_viterbi.inl.h"
#endif
