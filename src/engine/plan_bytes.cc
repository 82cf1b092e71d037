// Formulas of slots and kept states; the rest is asked of the model itself.
#include "engine/plan_bytes.h"

#include <algorithm>
#include <array>
#include <optional>

#include "cache/slots.h"
#include "forward/gpu_model.h"
#include "model/cache_bytes.h"
#include "ops/kda_block/kda_block.h"

namespace tandem::engine {
namespace {

int64_t kda_layers(const model::Shape& s) {
  return std::count(s.layer_types.begin(), s.layer_types.end(), model::AttentionKind::kda);
}

// Rows kept of the log, of each convolution, of each index ring and of the head.
StateParts parts(const model::Shape& s, int64_t log, int64_t conv, int64_t index, int64_t head) {
  const int64_t width = s.kda_width(), layers = kda_layers(s);
  return {4 * layers * width * s.kda_head_dim, 4 * layers * 3 * log * width, 4 * layers * conv * 3 * width,
          4 * cached_layers(s) * 2 * index * s.index_head_dim, 4 * head * s.hidden_size};
}

}  // namespace

int64_t cached_layers(const model::Shape& s, bool mtp) {
  return s.num_hidden_layers - kda_layers(s) + (mtp ? s.num_nextn_predict_layers : 0);
}

StateParts slot_parts(const model::Shape& s) {
  StateParts slot = parts(s, cache::ring_rows, cache::ring_rows, cache::ring_rows, cache::ring_rows);
  if (s.num_nextn_predict_layers > 0) slot.head += 4 * (s.hidden_size + s.max_selected() + cache::max_window + 1);
  return slot;
}

StateParts kept_state_parts(const model::Shape& s) {
  return parts(s, ops::kda_block_rows - 1, s.short_conv_kernel_size - 1, s.index_kpool - 1, 1);
}

PlannedBytes text_model_bytes(const model::Shape& shape, const forward::Ranks& ranks, int threads,
                              const model::DrafterShape* drafter) {
  std::optional<model::DrafterShape> own;
  if (drafter != nullptr) own = *drafter;
  return [shape, ranks, threads, own](const forward::Capacity& capacity) {
    return forward::TextModel::planned_bytes(shape, capacity, threads,
                                             {0, ranks.tensor_parallel_size, ranks.decode_context_parallel_size},
                                             own ? &*own : nullptr);
  };
}

PlannedBytes text_model_bytes(const model::Shape& shape, const forward::Ranks& ranks, int threads,
                              const model::CacheRow& row, const model::DrafterShape* drafter) {
  const auto page = [&](bool mtp) {
    return model::page_bytes(cached_layers(shape, mtp), row, shape.index_kpool, forward::TextModel::page_rows);
  };
  const std::array page_bytes{page(false), page(true)};
  return [bytes = text_model_bytes(shape, ranks, threads, drafter), page_bytes](forward::Capacity c) {
    const int64_t pages = c.pages;
    c.pages = 0;
    return bytes(c) + pages * page_bytes[c.mtp ? 1 : 0];
  };
}

PlannedBytes gpu_model_bytes(const device::GpuProperties& gpu, const model::Shape& shape,
                             const model::DrafterShape* drafter) {
  std::optional<model::DrafterShape> own;
  if (drafter != nullptr) own = *drafter;
  return [gpu, shape, own](const forward::Capacity& capacity) {
    return forward::GpuModel::planned_bytes(gpu, shape, capacity, own ? &*own : nullptr);
  };
}

}  // namespace tandem::engine
