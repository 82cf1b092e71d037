// The loops of the level in use, and the codebook in the order in which they read it.
#pragma once

#include "quant/exl3_codebook.h"
#include "quant/exl3_viterbi_kernels.h"

namespace tandem::quant {

const Exl3Kernels& exl3_kernels();

// Built at the first call, kept for the life of the program (256 KiB each).
const float* exl3_step_table(Exl3Codebook codebook, int bits, int lanes);

}  // namespace tandem::quant
