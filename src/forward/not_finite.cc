// Counts, and says where.
#include "forward/not_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem::forward {

int64_t count_not_finite(std::span<const float> values) {
  return std::count_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
}

std::string not_finite_state(const model::Shape& shape, int64_t kda_layer, int32_t slot, int64_t count, int64_t size) {
  int64_t layer = 0;
  for (int64_t kda = -1; layer < std::ssize(shape.layer_types); ++layer) {
    if (shape.layer_types[static_cast<size_t>(layer)] == model::AttentionKind::kda && ++kda == kda_layer) break;
  }
  return fmt::format("layer {}, KDA state of slot {}: {} of {} values", layer, slot, count, size);
}

std::string not_finite_hidden(const Step& step, std::span<const float> hidden, int64_t hidden_size) {
  for (const Segment& segment : step.segments) {
    for (int32_t i = 0; i < segment.rows; ++i) {
      const int64_t row = segment.first_row + i;
      const int64_t count =
          count_not_finite(hidden.subspan(static_cast<size_t>(row * hidden_size), static_cast<size_t>(hidden_size)));
      if (count > 0)
        return fmt::format("final hidden row {} (slot {}, position {}): {} values", row, segment.slot,
                           segment.position + i, count);
    }
  }
  return {};
}

}  // namespace tandem::forward
