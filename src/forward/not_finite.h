// --check-numerics: NaN and infinity in what a text step leaves.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "forward/step.h"
#include "model/shape.h"

namespace tandem::forward {

int64_t count_not_finite(std::span<const float> values);
// "layer 5, KDA state of slot 1: 3 of 32768 values"; kda_layer: counted among the KDA layers.
std::string not_finite_state(const model::Shape& shape, int64_t kda_layer, int32_t slot, int64_t count, int64_t size);
// "final hidden row 3 (slot 1, position 17): 2 values" of the first row that has one; empty: none. `hidden`: [rows of
// the step, hidden_size].
std::string not_finite_hidden(const Step& step, std::span<const float> hidden, int64_t hidden_size);

}  // namespace tandem::forward
