// The trellis search for scalar; see exl3_viterbi_kernels.h.
#define TANDEM_EXL3_LEVEL scalar
#include "quant/exl3_viterbi.inl.h"
