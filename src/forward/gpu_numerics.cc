// GpuModel::not_finite(): states and hidden rows are copied to the host and looked at there, which costs a step some
// milliseconds for each stream; it is for finding faults, not for serving.
#include <algorithm>
#include <vector>

#include "forward/gpu_model_state.h"
#include "forward/not_finite.h"

namespace tandem::forward {

std::string GpuModel::not_finite(const Step& step) {
  State& s = *state_;
  if (step.kind != StepKind::text || step.tokens.empty()) return {};
  const int64_t layers = std::count(s.shape.layer_types.begin(), s.shape.layer_types.end(), model::AttentionKind::kda);
  const int64_t size = s.shape.kda_width() * s.shape.kda_head_dim;
  std::vector<float> state(static_cast<size_t>(size));
  for (const Segment& segment : step.segments) {
    if (s.slots.kda_block(segment.slot) == 0) continue;  // S₀ of the first block are zeros that nobody has written
    for (int64_t layer = 0; layer < layers; ++layer) {
      const ops::SlotView<float> all = s.slots.s0(layer);
      s.gpu.download(state.data(), all.data + segment.slot * all.stride, size * 4);
      s.gpu.synchronize();
      if (const int64_t count = count_not_finite(state); count > 0)
        return not_finite_state(s.shape, layer, segment.slot, count, size);
    }
  }
  return not_finite_hidden(step, hidden(), s.shape.hidden_size);
}

}  // namespace tandem::forward
