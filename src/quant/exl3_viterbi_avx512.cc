// The trellis search for avx512; see exl3_viterbi_kernels.h.
#if defined(__x86_64__)
#define TANDEM_EXL3_LEVEL avx512
#define TANDEM_EXL3_AVX512
#include "quant/exl3_viterbi.inl.h"
#endif
