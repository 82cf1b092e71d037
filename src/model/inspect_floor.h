// What a step must read, and how long that takes at a given rate of memory: no program decodes faster on such a device
// (spec/performance.md; spec/quantization.md 4.7). Not counted: the embedding row, activations, and exchanges of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/inventory.h"
#include "model/shape.h"

namespace tandem::model {

// Bytes that a step of `rows` rows of one stream reads (a token decoded, or a window of drafts verified), each once,
// however many rows use it.
struct StepBytes {
  int64_t rows = 1;
  double distinct_experts = 0;  // of a layer, expected: E (1 − (1 − k/E)^rows), independent routing
  double dense = 0;             // weights but routed experts, the embedding table and the MTP layer
  double experts = 0;
  double states = 0;      // KDA: every S₀ read; written once in 16 rows, for which it counts rows/16, at most 1
  double latents = 0;     // token rows that one row of the step attends to, in all layers
  double index_keys = 0;  // all pooled keys, once there are more than a selection takes

  double total() const { return dense + experts + states + latents + index_keys; }
};

struct FloorSettings {
  double gb_per_s = 0;  // --bandwidth: 1e9 bytes a second, of all devices together
  int64_t context = 0;  // --context: tokens before the step
  CacheRow cache;       // the records of token rows
};

struct Floor {
  FloorSettings settings;
  std::vector<StepBytes> steps;  // of 1, 2, 4, … 64 rows

  double seconds(const StepBytes& step) const { return step.total() / (1e9 * settings.gb_per_s); }
};

// Of what is read for one token, this row's part: nothing of the embedding table and the MTP layer, of routed experts
// those chosen.
double bytes_per_token(const FormatRow& row, const Shape& shape);

StepBytes step_bytes(const Shape& shape, const std::vector<FormatRow>& weights, const FloorSettings& settings,
                     int64_t rows);
// Throws Error(usage) unless the rate is a finite number above 0 and the context is one that the model can have.
Floor floor_of(const Shape& shape, const std::vector<FormatRow>& weights, const FloorSettings& settings);

std::string floor_text(const Floor& floor, const Shape& shape);  // lines, each ended

}  // namespace tandem::model
