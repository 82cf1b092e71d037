// Memory for the largest step of a capacity, so that steps travel between ranks without allocating.
#pragma once

#include <cstddef>

#include "forward/step.h"
#include "forward/text_model.h"

namespace tandem::cluster {

// So that reading a step into it allocates nothing.
void reserve(forward::Step& step, const forward::Capacity& capacity);
// Most bytes of such a step.
size_t step_bytes(const forward::Step& reserved);

}  // namespace tandem::cluster
