// What `tandem plan` prints.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/drafting.h"
#include "engine/plan.h"
#include "engine/plan_bytes.h"
#include "engine/plan_weights.h"
#include "model/inventory.h"

namespace tandem::cli {

struct PlanReport {
  std::string model;
  // Devices.
  bool on_gpus = false;
  int32_t devices = 1;
  int64_t device_memory = 0, usable_memory = 0;  // bytes of each
  forward::Ranks ranks;
  // Weights and what stands beside them, bytes by rank.
  std::string weights_format;
  engine::WeightBytes weights;
  Drafting drafting;                               // a DFlash2 drafter without a folder: the published one's sizes
  std::array<int64_t, 2> drafter_bytes{};          // of a DFlash2 drafter; ranks of one host share them
  int64_t vision_bytes = 0, vision_workspace = 0;  // of rank 0
  // Cache.
  std::string kv_cache_dtype;
  model::CacheRow row;
  int64_t layers = 0, tokens_per_pool = 1;
  engine::StateParts stream, kept_state;         // of rank 0
  int64_t stream_drafter = 0, kept_drafter = 0;  // rows of a DFlash2 drafter
  int64_t max_position_embeddings = 0;
  engine::PlanSettings settings;

  std::optional<engine::Plan> plan;  // absent where it does not fit
  std::string problem;               // one sentence
  std::vector<std::string> changes;  // each makes it fit

  int64_t resident(int rank) const;  // bytes of a rank beside the plan
  double bytes_per_token() const;    // of a rank's pool
  // The plan without pool, streams and kept states: scratch of a step's rows, of threads and of the drafter's blocks,
  // each piece rounded up to 64 bytes.
  int64_t activations() const;
  int64_t stream_bytes() const { return stream.total() + stream_drafter; }
  int64_t kept_state_bytes() const { return kept_state.total() + kept_drafter; }
};

std::string plan_text(const PlanReport& report);  // lines, each ended
// One object, first key "schema": "tandem.plan/1" (docs/plan.md), ended by a newline.
std::string plan_json(const PlanReport& report);

}  // namespace tandem::cli
