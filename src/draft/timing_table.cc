// Look-ups in a timing table, and the table of a machine that was never measured.
#include "draft/timing_table.h"

#include "base/error.h"

namespace tandem::draft {

double TimingTable::verify(int64_t rows) const {
  const auto size = static_cast<int64_t>(verify_ms.size());
  if (size == 0) throw Error(ErrorCode::internal, "timing table", "no times of verification", "at least one");
  if (rows < 1) rows = 1;
  if (rows <= size) return verify_ms[static_cast<size_t>(rows - 1)];
  const double last = verify_ms[static_cast<size_t>(size - 1)];
  const double slope = size == 1 ? last : last - verify_ms[static_cast<size_t>(size - 2)];
  return last + slope * static_cast<double>(rows - size);
}

// Figures of a two-rank machine with 4-bit experts (spec/speculation.md 5.1 and 1.9), divided by its plain step of 30
// ms: V(2) ≈ 40 ms (a second row wakes up to 8 experts a layer of its own), then 4.7 ms a row, since tokens that follow
// each other share about half of their experts; a block 3.9 ms. The MTP layer is one of 46 and its head is the model's:
// 1.27 of some 8 GB that a plain step reads, and twice that for the absorbed rows of an ordinary round.
TimingTable built_in_table(double block_share) {
  constexpr double second_row = 1.3, row = 0.155;
  TimingTable table;
  table.id = "built-in";
  table.verify_ms = {1.0};
  for (int rows = 2; rows <= 16; ++rows) table.verify_ms.push_back(second_row + row * (rows - 2));
  table.mtp_ms = 0.1;
  table.mtp_step_ms = 0.06;
  table.block_ms = 0.13 * block_share / published_block_share;
  table.overhead_ms = 0.05;
  return table;
}

}  // namespace tandem::draft
