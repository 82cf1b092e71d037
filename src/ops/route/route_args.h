// What host code tells route.cu.
#pragma once

#include "device/kernel_types.h"

namespace tandem::ops {

struct RouteArgs {
  const int32_t* rows;  // how many there are
  const float* logits;  // [rows, experts] router logits
  const float* bias;    // [experts]: for the choice only
  int32_t* chosen;      // out [rows, per_token], ascending
  float* weights;       // out [rows, per_token]
  float* gaps;          // out [rows]: distance of sigmoid + bias at the cut; may be nullptr
  int32_t experts, per_token;
  int32_t normalise;  // norm_topk_prob
  float routed_scaling_factor;
};

}  // namespace tandem::ops
