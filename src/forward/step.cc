// Steps made and emptied.
#include "forward/step.h"

namespace tandem::forward {

void Step::clear() {
  kind = StepKind::text;
  keeps.clear();
  restores.clear();
  page_copies.clear();
  tokens.clear();
  positions.clear();
  segments.clear();
  page_tables.clear();
  logit_rows.clear();
  head_slots.clear();
  samples.clear();
  masked_tokens.clear();
}

Step single_stream_step(std::span<const int32_t> tokens, int64_t position, int32_t pages) {
  Step step;
  step.tokens.assign(tokens.begin(), tokens.end());
  for (size_t i = 0; i < tokens.size(); ++i) step.positions.push_back(position + static_cast<int64_t>(i));
  for (int32_t page = 1; page <= pages; ++page) step.page_tables.push_back(page);
  const auto rows = static_cast<int32_t>(tokens.size());
  step.segments.push_back({.slot = 0,
                           .page_table = 0,
                           .pages = pages,
                           .first_row = 0,
                           .rows = rows,
                           .certain_rows = rows,
                           .position = position});
  return step;
}

}  // namespace tandem::forward
