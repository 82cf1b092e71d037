// Free pages first, then those of kept states.
#include "engine/page_book.h"

namespace tandem::engine {

PageBook::PageBook(const SchedulerOptions& options)
    : page_rows_(options.capacity.page_rows),
      pages_(static_cast<int32_t>(options.capacity.pages), options.page_groups),
      index_(options.capacity.kept_states, pages_, page_rows_) {
  pins_.reserve(2 * static_cast<size_t>(options.capacity.slots));  // a slot is kept and restored at most once a step
}

bool PageBook::has_room(const Need& need) const {
  for (int32_t group = 0; group < groups(); ++group) {
    if (need.of(group) <= pages_.free(group)) continue;
    if (need.of(group) > pages_.free(group) + index_.reclaimable(group)) return false;
  }
  return true;
}

int32_t PageBook::take(int64_t entry) {
  is_counted_ = false;
  const int32_t group = group_of(entry);
  while (pages_.free(group) == 0) {
    if (index_.reclaimable(group) == 0 || !index_.evict_for_page(group)) return 0;
  }
  return pages_.take(group);
}

void PageBook::release(std::vector<int32_t>& table) {
  is_counted_ = false;
  for (size_t entry = 0; entry < table.size(); ++entry)
    pages_.release(group_of(static_cast<int64_t>(entry)), table[entry]);
  table.clear();
}

void PageBook::pin_for_step(int32_t record) {
  is_counted_ = false;
  index_.pin(record);
  pins_.push_back(record);
}

void PageBook::step_done() {
  is_counted_ = false;
  for (const int32_t record : pins_) index_.unpin(record);
  pins_.clear();
}

const PageBook::Rows& PageBook::rows() const {
  if (is_counted_) return rows_;
  rows_ = {};
  for (int32_t group = 0; group < groups(); ++group) {
    rows_.total += page_rows_ * pages_.total(group);
    rows_.free += page_rows_ * pages_.free(group);
    rows_.reclaimable += page_rows_ * index_.reclaimable(group);
  }
  is_counted_ = true;
  return rows_;
}

}  // namespace tandem::engine
