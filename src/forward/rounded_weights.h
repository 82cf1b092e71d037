// Matrices stored as F32 as bf16 mode multiplies them: rounded once, when the model is made (ops/rounding.h). Published
// checkpoints are BF16 or coded, which is used as it is stored; F32 are those of some tests.
#pragma once

#include <cstdint>
#include <span>

#include "device/host_memory.h"
#include "model/drafter.h"
#include "model/shape.h"
#include "model/weights.h"
#include "ops/rounding.h"

namespace tandem::forward {

class RoundedMatrices {
 public:
  // Lets the F32 matrices of `weights`, but for the router's gate and the mHC's fn, point at BF16 copies that live as
  // long as this object. Once. Throws Error(does_not_fit).
  void replace(const model::Shape& shape, model::TextWeights& weights);
  // The drafter's weights, with such copies in bf16 mode.
  model::DrafterWeights replaced(const model::DrafterWeights& weights, ops::Compute compute);

 private:
  void replace(std::span<ops::Matrix* const> matrices);

  device::HostMemory memory_;
};

// What RoundedMatrices::replace() allocates.
int64_t rounded_bytes(const model::Shape& shape, const model::TextWeights& weights);

}  // namespace tandem::forward
