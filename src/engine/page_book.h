// The scheduler's view of the pool: pages taken with the help of evictions, kept states pinned for the length of a
// step.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cache/page_allocator.h"
#include "cache/prefix_index.h"
#include "engine/scheduler_options.h"

namespace tandem::engine {

class PageBook {
 public:
  explicit PageBook(const SchedulerOptions& options);

  int64_t page_rows() const { return page_rows_; }
  int32_t groups() const { return pages_.groups(); }
  int32_t group_of(int64_t entry) const { return static_cast<int32_t>(entry % groups()); }
  int64_t entries_of(int64_t rows) const { return (rows + page_rows_ - 1) / page_rows_; }

  // Pages wanted, by group, for table entries [first, last).
  class Need {
   public:
    explicit Need(int32_t groups) : pages_(static_cast<size_t>(groups)) {}
    void clear() { pages_.assign(pages_.size(), 0); }
    void add_entry(int64_t entry) { ++pages_[static_cast<size_t>(entry) % pages_.size()]; }
    int64_t of(int32_t group) const { return pages_[static_cast<size_t>(group)]; }

   private:
    std::vector<int64_t> pages_;
  };
  // Free pages and those that only kept states hold suffice in every group.
  bool has_room(const Need& need) const;
  // A page for a table entry; kept states are evicted until there is one. 0: none.
  int32_t take(int64_t entry);
  void share(int64_t entry, int32_t page) {
    is_counted_ = false;
    pages_.share(group_of(entry), page);
  }
  // Gives back all pages of a table and empties it.
  void release(std::vector<int32_t>& table);

  // Pins the record until the step has run.
  void pin_for_step(int32_t record);
  bool has_pins() const { return !pins_.empty(); }
  void step_done();

  const cache::PageAllocator& pages() const { return pages_; }
  cache::PrefixIndex& index() {
    is_counted_ = false;
    return index_;
  }
  const cache::PrefixIndex& index() const { return index_; }
  // Rows over all groups. Counted again only after a change: counting takes time that grows with the pool.
  struct Rows {
    int64_t total = 0, free = 0, reclaimable = 0;
  };
  const Rows& rows() const;

 private:
  const int64_t page_rows_;
  cache::PageAllocator pages_;
  cache::PrefixIndex index_;
  std::vector<int32_t> pins_;
  mutable Rows rows_;
  mutable bool is_counted_ = false;
};

}  // namespace tandem::engine
