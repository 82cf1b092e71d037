// The router: which experts a row uses, and with what weight (spec/model.md 5.2).
#pragma once

#include <cstdint>

namespace tandem::ops {

constexpr int64_t max_experts = 1024;

struct Route {
  int64_t experts = 0, per_token = 0;
  bool normalise = true;  // norm_topk_prob
  float routed_scaling_factor = 1.0f;
  const float* bias = nullptr;  // [experts] e_score_correction_bias: selection only
  int64_t rows = 0;
  float* logits = nullptr;    // [rows, experts] router logits in fp32; overwritten by their sigmoid
  int32_t* chosen = nullptr;  // out [rows, per_token], ascending
  float* weights = nullptr;   // out [rows, per_token]
  float* gaps = nullptr;      // optional out [rows]: distance of sigmoid + bias at the cut
};
void route(const Route& args);

}  // namespace tandem::ops
