// The ranks that run a step together: what each of them has, and how their leaves become one sum (design.md 1, "two
// leaves"). A rank alone computes both leaves inside the operations and exchanges nothing.
#pragma once

#include <array>
#include <cstdint>

#include "device/exchange.h"
#include "device/threads.h"
#include "forward/text_model.h"
#include "model/split.h"

namespace tandem::forward {

struct Group {
  Ranks ranks;
  std::array<model::RankParts, 2> parts;  // of both ranks; of a rank alone: the first
  device::Exchange* exchange = nullptr;   // of two ranks
  float* buffer = nullptr;                // [2, Scratch::exchange_size]

  bool alone() const { return ranks.tensor_parallel_size == 1; }
  bool pages_are_shared() const { return ranks.decode_context_parallel_size > 1; }
  const model::RankParts& own() const { return parts[static_cast<size_t>(ranks.rank)]; }

  // Where this rank puts its n values before gather(n), and where rank `rank`'s lie afterwards.
  float* mine(int64_t n) const { return of(ranks.rank, n); }
  float* of(int64_t rank, int64_t n) const { return buffer + rank * n; }
  void gather(int64_t n) const;
};

// Throws Error(usage) for sizes that there are not.
void check_ranks(const Ranks& ranks);
// The same, and Error(internal) for two ranks without an exchange.
Group make_group(const model::Shape& whole, const Ranks& ranks, device::Exchange* exchange);

// y [rows, width] = leaf 0 + leaf 1 of the gathered sums [rows, width], for each row those that it has: has(row, leaf).
template <typename Has>
void add_leaves(device::Threads& threads, const Group& group, int64_t rows, int64_t width, float* y, const Has& has);
// One row of add_leaves().
void add_leaf_row(const float* leaf0, bool has0, const float* leaf1, bool has1, int64_t width, float* y);

// y [rows, out] = o_proj x, a sum over the heads of both ranks: x [rows, in] has this rank's. second: rank 1 has any.
// Ranks exchange fp32; y is rounded once, after the addition.
void project_heads(device::Threads& threads, const Group& group, const model::Matrix& o_proj, const float* x,
                   bool second, int64_t rows, float* y, Compute compute);

template <typename Has>
void add_leaves(device::Threads& threads, const Group& group, int64_t rows, int64_t width, float* y, const Has& has) {
  const float *leaf0 = group.of(0, rows * width), *leaf1 = group.of(1, rows * width);
  constexpr int64_t rows_of_task = 16;
  threads.run((rows + rows_of_task - 1) / rows_of_task, [&](int64_t task) {
    for (int64_t row = task * rows_of_task; row < rows && row < (task + 1) * rows_of_task; ++row) {
      const int64_t at = row * width;
      add_leaf_row(leaf0 + at, has(row, 0), leaf1 + at, has(row, 1), width, y + at);
    }
  });
}

}  // namespace tandem::forward
