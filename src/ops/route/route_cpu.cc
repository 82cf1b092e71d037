// The router on the CPU: of equal scores the lower expert wins, and chosen experts are listed in ascending order.
#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "ops/route/route.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {
namespace {

void route_row(const Route& a, int64_t row) {
  float* score = a.logits + row * a.experts;
  kernels().sigmoid(score, a.experts, score);
  int32_t order[max_experts];
  float key[max_experts];
  std::iota(order, order + a.experts, 0);
  for (int64_t e = 0; e < a.experts; ++e) key[e] = score[e] + a.bias[e];
  const auto better = [&key](int32_t x, int32_t y) { return key[x] != key[y] ? key[x] > key[y] : x < y; };
  const bool all = a.per_token == a.experts;
  std::partial_sort(order, order + a.per_token + (all ? 0 : 1), order + a.experts, better);
  if (a.gaps != nullptr) {
    a.gaps[row] = all ? std::numeric_limits<float>::infinity() : key[order[a.per_token - 1]] - key[order[a.per_token]];
  }
  std::sort(order, order + a.per_token);
  float sum = 0.0f;
  for (int64_t i = 0; i < a.per_token; ++i) sum += score[order[i]];
  for (int64_t i = 0; i < a.per_token; ++i) {
    const float share = a.normalise ? score[order[i]] / (sum + 1e-20f) : score[order[i]];
    a.chosen[row * a.per_token + i] = order[i];
    a.weights[row * a.per_token + i] = a.routed_scaling_factor * share;
  }
}

}  // namespace

void route(const Route& args) {
  if (args.experts > max_experts) throw Error(ErrorCode::internal, "route", "too many experts");
  for (int64_t row = 0; row < args.rows; ++row) route_row(args, row);
}

}  // namespace tandem::ops
