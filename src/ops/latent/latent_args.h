// What host code tells latent.cu.
#pragma once

#include "ops/step_view.h"

namespace tandem::ops {

struct LatentStoreArgs {
  StepView step;
  PlaneView plane;             // not f32
  const device::bf16* latent;  // [rows, plane.width], after their norm
  int64_t latent_stride;
};

}  // namespace tandem::ops
