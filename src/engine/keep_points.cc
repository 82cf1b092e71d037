// The least of four candidates.
#include "engine/keep_points.h"

#include <algorithm>
#include <bit>

namespace tandem::engine {
namespace {

int64_t next_stride_point(const KeepRules& rules, int64_t after) {
  const auto share = static_cast<uint64_t>(std::max<int64_t>(1, after / rules.stride_divisor));
  const int64_t stride =
      std::clamp(static_cast<int64_t>(std::bit_floor(share)), rules.smallest_stride, rules.largest_stride);
  return (after / stride + 1) * stride;
}

}  // namespace

int64_t fork_point(const KeepRules& rules, int64_t resumed, int64_t common) {
  return common - resumed >= rules.shortest_fork ? common : 0;
}

KeepPoint next_keep_point(const KeepRules& rules, const PromptToKeep& prompt, int64_t after) {
  if (after >= prompt.length) return {};
  int64_t next = prompt.length;
  const auto position = std::upper_bound(prompt.positions.begin(), prompt.positions.end(), after);
  if (position != prompt.positions.end()) next = std::min(next, *position);
  if (prompt.fork > after) next = std::min(next, prompt.fork);
  if (rules.smallest_stride > 0) next = std::min(next, next_stride_point(rules, after));
  return {next, next == prompt.fork};
}

}  // namespace tandem::engine
