// The scale vectors that all experts of a layer share in TR3's layout (spec/quantization.md 3.1, 3.2), so that a
// token's input is rotated once for all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "device/threads.h"

namespace tandem::eval {

// One expert's matrix.
struct SharingMatrix {
  std::function<std::vector<float>()> values;  // fp32 [out, in], made when it is needed
  int64_t out = 0, in = 0;
  double mass = 0;  // how much it counts: the sum of the squared router weights of its tokens
};

// suh of gate and up: the signs of a Hessian with this seed times the mass-weighted geometric mean, over all matrices,
// of the RMS of every input once the private output side (scales, transform) is taken off, divided by −1.24371088 (3.2,
// without its blocks of scales). Padded to a multiple of 128 with the profile's mean. Where no matrix has mass all
// count the same. The same for any number of threads.
std::vector<float> shared_input_vector(const std::vector<SharingMatrix>& matrices, uint64_t sign_seed,
                                       device::Threads& threads);
// svh of down: random signs times the same mean of the RMS of every output relative to its matrix's mean, with mean 1.
std::vector<float> shared_output_vector(const std::vector<SharingMatrix>& matrices, uint64_t sign_seed,
                                        device::Threads& threads);

}  // namespace tandem::eval
