// How much memory a step may need.
#include "cluster/step_room.h"

#include <algorithm>
#include <vector>

namespace tandem::cluster {

void reserve(forward::Step& step, const forward::Capacity& capacity) {
  const auto count = [](int64_t n) { return static_cast<size_t>(n); };
  const size_t slots = count(capacity.slots), moves = slots + count(capacity.kept_states);
  const int64_t stream_pages = capacity.max_stream_pages > 0 ? capacity.max_stream_pages : 2 * capacity.pages;
  step.keeps.reserve(moves);
  step.restores.reserve(moves);
  step.page_copies.reserve(slots);
  const size_t rows = std::max(count(capacity.max_rows), slots);
  step.tokens.reserve(rows);
  step.positions.reserve(rows);
  step.segments.reserve(slots);
  step.page_tables.reserve(slots * count(stream_pages));
  step.logit_rows.reserve(count(capacity.max_logit_rows));
  step.head_slots.reserve(slots);
  step.samples.reserve(count(capacity.max_logit_rows));
  step.masked_tokens.reserve(count(int64_t{capacity.max_logit_rows} * forward::RowSample::most_masked));
}

size_t step_bytes(const forward::Step& reserved) {
  std::vector<std::byte> empty;
  forward::write_step({}, empty);
  return empty.size() + reserved.keeps.capacity() * sizeof(forward::StateMove) +
         reserved.restores.capacity() * sizeof(forward::StateMove) +
         reserved.page_copies.capacity() * sizeof(forward::PageCopy) +
         reserved.segments.capacity() * sizeof(forward::Segment) + reserved.positions.capacity() * sizeof(int64_t) +
         sizeof(int32_t) *
             (reserved.tokens.capacity() + reserved.page_tables.capacity() + reserved.logit_rows.capacity() +
              reserved.head_slots.capacity() + reserved.masked_tokens.capacity()) +
         reserved.samples.capacity() * sizeof(forward::RowSample);
}

}  // namespace tandem::cluster
