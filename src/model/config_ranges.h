// What config.json of a model and of a drafter may say. The upper bounds are far above any model of this kind, and such
// that no product of dimensions (parameters, bytes) overflows 64 bits.
#pragma once

#include <limits>

#include "model/json_reader.h"

namespace tandem::model {

inline constexpr IntegerRange vocabulary_range{2, int64_t{1} << 22};
inline constexpr IntegerRange width_range{1, 1 << 16};
inline constexpr IntegerRange wide_range{1, 1 << 18};
inline constexpr IntegerRange any_integer{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};

}  // namespace tandem::model
