// Who holds which page of the token pool: reference counts and free lists (design.md 5). Host-side bookkeeping only;
// the rows lie in TokenPool. Under decode-context parallelism there is one group of pages for each rank, and entry j of
// a page table is a page of group j mod groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem::cache {

class PageAllocator {
 public:
  // `pages` of each group, the null page 0 included, which is never handed out. Everything is allocated here. Groups
  // and pages that do not exist, and free pages where held ones are needed, are Error(internal) everywhere.
  explicit PageAllocator(int32_t pages, int32_t groups = 1);

  int32_t groups() const;
  int32_t total(int32_t group) const;  // pages that can be handed out
  int32_t free(int32_t group) const;
  int32_t references(int32_t group, int32_t page) const;
  std::span<const int32_t> references(int32_t group) const;  // of all its pages, the null page 0 included

  // A free page with one reference, the lowest number first; 0 if none is free.
  int32_t take(int32_t group);
  void share(int32_t group, int32_t page);    // one reference more; the page must be held
  void release(int32_t group, int32_t page);  // one less; with the last one the page is free

  // Throws Error(internal) naming the page unless free + held = total and the free list holds exactly the pages without
  // references. For tests and for the end of every mix of the equality suite.
  void check() const;

 private:
  struct Group {
    std::vector<int32_t> references;  // [pages]
    std::vector<int32_t> free;        // heap, lowest first
  };
  const Group& at(int32_t group) const;
  int32_t& held(int32_t group, int32_t page);  // references of a page that must have some

  std::vector<Group> groups_;
};

}  // namespace tandem::cache
