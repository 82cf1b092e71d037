// The router (spec/model.md 5.2): a warp a row. Of equal sigmoid + bias the lower expert wins; weights are summed in
// ascending order of experts. Floor: the logits read once; in a decode step the launch itself.
#include "device/kernel.h"
#include "ops/route/route_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;

constexpr int32_t warps = 4, most_experts = 1024, most_per_token = 32;

// Greater floats have greater keys; 0 is less than any.
TANDEM_DEVICE uint32_t key_of(float x) {
  const uint32_t bits = float_to_bits(x);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
TANDEM_DEVICE float value_of(uint32_t key) { return bits_to_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key); }

// The largest key of a lane's experts (lane, lane + 32, …) and the lowest expert that has it.
TANDEM_DEVICE void best_of_lane(const uint32_t* keys, int32_t lane, int32_t experts, uint32_t& best, uint32_t& expert) {
  best = 0;
  expert = static_cast<uint32_t>(lane);
  for (int32_t e = lane; e < experts; e += 32) {
    if (keys[e] > best) {
      best = keys[e];
      expert = static_cast<uint32_t>(e);
    }
  }
}

TANDEM_KERNEL(route_rows, ops::RouteArgs, 128) {
  __shared__ uint32_t all_keys[warps][most_experts];
  __shared__ float all_scores[warps][most_per_token];
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * warps + warp;
  if (row >= *args.rows) return;
  uint32_t* keys = all_keys[warp];
  float* scores = all_scores[warp];
  const float* logits = args.logits + row * args.experts;
  constexpr int32_t at_once = 9;  // 288 experts, all on their way together
  for (int32_t first = lane; first < args.experts; first += 32 * at_once) {
    float logit[at_once], bias[at_once];
#pragma unroll
    for (int32_t i = 0; i < at_once; ++i) {
      const int32_t e = first + 32 * i;
      logit[i] = e < args.experts ? logits[e] : 0.0f;
      bias[i] = e < args.experts ? args.bias[e] : 0.0f;
    }
#pragma unroll
    for (int32_t i = 0; i < at_once; ++i) {
      const int32_t e = first + 32 * i;
      if (e < args.experts) keys[e] = key_of(sigmoid(logit[i]) + bias[i]);
    }
  }

  uint32_t best, expert, last = 0, taken = 0;  // taken: bit i is expert lane + 32·i
  best_of_lane(keys, lane, args.experts, best, expert);
  const int32_t rounds = args.per_token + (args.gaps != nullptr && args.per_token < args.experts ? 1 : 0);
  float gap = bits_to_float(0x7f800000u);
  for (int32_t round = 0; round < rounds; ++round) {
    const uint32_t largest = largest_in_warp(best);
    if (round == args.per_token) {
      gap = value_of(last) - value_of(largest);
      break;
    }
    last = largest;
    const uint32_t winner = smallest_in_warp(best == largest ? expert : 0xffffffffu);
    if (best == largest && expert == winner) {
      taken |= 1u << (winner / 32);
      keys[winner] = 0;
      best_of_lane(keys, lane, args.experts, best, expert);
    }
  }
  if (args.gaps != nullptr && lane == 0) args.gaps[row] = gap;

  int32_t before = 0;
  int32_t* chosen = args.chosen + row * args.per_token;
  for (int32_t word = 0; 32 * word < args.experts; ++word) {
    const bool mine = (taken >> word & 1u) != 0;
    const uint32_t all = device::ballot(mine);
    if (mine) {
      const int32_t place = before + count_bits(all & ((1u << lane) - 1u));
      chosen[place] = 32 * word + lane;
      scores[place] = sigmoid(logits[32 * word + lane]);
    }
    before += count_bits(all);
  }
  __syncwarp();
  float sum = 0.0f;
  for (int32_t i = 0; i < args.per_token; ++i) sum += scores[i];
  if (lane < args.per_token) {
    const float share = args.normalise != 0 ? scores[lane] / (sum + 1e-20f) : scores[lane];
    args.weights[row * args.per_token + lane] = args.routed_scaling_factor * share;
  }
}

}  // namespace
