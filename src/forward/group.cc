// Sums and checks of a group of ranks.
#include "forward/group.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "ops/linear/linear.h"
#include "ops/simd/kernels.h"

namespace tandem::forward {

void Group::gather(int64_t n) const {
  exchange->all_gather({mine(n), static_cast<size_t>(n)}, {buffer, static_cast<size_t>(2 * n)});
}

void check_ranks(const Ranks& ranks) {
  const int32_t size = ranks.tensor_parallel_size, pages = ranks.decode_context_parallel_size;
  if (size != 1 && size != 2)
    throw Error(ErrorCode::usage, "--tensor-parallel-size", fmt::format("{}", size), "1 or 2");
  if (pages != 1 && pages != size)
    throw Error(ErrorCode::usage, "--decode-context-parallel-size", fmt::format("{}", pages),
                size == 1 ? "1, or --tensor-parallel-size 2" : "1 or 2");
  if (ranks.rank < 0 || ranks.rank >= size)
    throw Error(ErrorCode::internal, "rank", fmt::format("{} of {}", ranks.rank, size));
}

Group make_group(const model::Shape& whole, const Ranks& ranks, device::Exchange* exchange) {
  check_ranks(ranks);
  const int32_t size = ranks.tensor_parallel_size;
  if (size == 2 && (exchange == nullptr || exchange->ranks() != size || exchange->rank() != ranks.rank))
    throw Error(ErrorCode::internal, "rank", "no exchange of this rank with the other");
  Group group;
  group.ranks = ranks;
  for (int32_t rank = 0; rank < size; ++rank)
    group.parts[static_cast<size_t>(rank)] = model::parts_of_rank(whole, rank, size);
  group.exchange = exchange;
  return group;
}

void add_leaf_row(const float* leaf0, bool has0, const float* leaf1, bool has1, int64_t width, float* y) {
  if (has0 && has1) {
    ops::kernels().add(leaf0, leaf1, width, y);
  } else if (has0 || has1) {
    std::copy_n(has0 ? leaf0 : leaf1, width, y);
  } else {
    std::fill_n(y, width, 0.0f);
  }
}

void project_heads(device::Threads& threads, const Group& group, const model::Matrix& o_proj, const float* x,
                   bool second, int64_t rows, float* y, Compute compute) {
  if (group.alone()) return ops::linear(threads, o_proj, x, y, rows, compute);
  const int64_t size = rows * o_proj.out_features;
  if (o_proj.in_features > 0) ops::linear(threads, o_proj, x, group.mine(size), rows);
  group.gather(size);
  add_leaves(threads, group, rows, o_proj.out_features, y,
             [second](int64_t, int64_t leaf) { return leaf == 0 || second; });
  ops::round_values(threads, compute, ops::RoundingPoint::linear, y, size);
}

}  // namespace tandem::forward
