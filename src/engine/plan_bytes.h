// What a rank of the model allocates, part by part: the formulas behind `tandem plan` and behind make_plan().
#pragma once

#include <cstdint>

#include "device/gpu.h"
#include "engine/plan.h"
#include "model/drafter.h"
#include "model/inventory.h"
#include "model/shape.h"

namespace tandem::engine {

// Bytes of one stream's slot, or of one kept state: what a stream remembers beside its token rows (design.md 5). A slot
// has rings of 32 rows; a kept state only the rows that a stream of its length can still look back to.
struct StateParts {
  int64_t kda = 0;    // S₀ of every KDA layer, fp32
  int64_t log = 0;    // rows (k, G, δ) of the unfinished block of 16 tokens
  int64_t conv = 0;   // raw rows that the convolutions look back to
  int64_t index = 0;  // raw index keys and gates of the unfinished pool
  int64_t head = 0;   // post-norm hidden rows; of a slot also the row and the selection that MTP steps leave
  int64_t total() const { return kda + log + conv + index + head; }
};
StateParts slot_parts(const model::Shape& rank_shape);  // of model::shape_of_rank(), as below
StateParts kept_state_parts(const model::Shape& rank_shape);

// Layers with token rows: the DSA layers and, if it is used, the MTP layer.
int64_t cached_layers(const model::Shape& shape, bool mtp = true);

// What rank 0, which has the larger half, allocates: TextModel::planned_bytes with page rows of another format where
// `row` is not the capacity's cache type. `threads`: of the rank. With a DFlash2 drafter its context rows, those of
// kept states and its activations are counted, too; it need not outlive the call.
PlannedBytes text_model_bytes(const model::Shape& shape, const forward::Ranks& ranks, int threads,
                              const model::DrafterShape* drafter = nullptr);
PlannedBytes text_model_bytes(const model::Shape& shape, const forward::Ranks& ranks, int threads,
                              const model::CacheRow& row, const model::DrafterShape* drafter = nullptr);

// The same of the model on a GPU like this one (forward::GpuModel::planned_bytes).
PlannedBytes gpu_model_bytes(const device::GpuProperties& gpu, const model::Shape& shape,
                             const model::DrafterShape* drafter = nullptr);

}  // namespace tandem::engine
