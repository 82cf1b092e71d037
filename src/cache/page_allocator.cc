// Reference counts and free lists of the pages.
#include "cache/page_allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"

namespace tandem::cache {
namespace {

[[noreturn]] void bad_pages(const std::string& found, const std::string& expected) {
  throw Error(ErrorCode::internal, "page allocator", found, expected);
}

}  // namespace

PageAllocator::PageAllocator(int32_t pages, int32_t groups) {
  if (pages < 1 || groups < 1)
    bad_pages(fmt::format("{} pages in {} groups", pages, groups), "a null page and at least one group");
  groups_.resize(static_cast<size_t>(groups));
  for (Group& group : groups_) {
    group.references.resize(static_cast<size_t>(pages));
    group.free.resize(static_cast<size_t>(pages - 1));
    std::iota(group.free.begin(), group.free.end(), 1);  // ascending numbers are a heap
  }
}

int32_t PageAllocator::groups() const { return static_cast<int32_t>(groups_.size()); }

const PageAllocator::Group& PageAllocator::at(int32_t group) const {
  if (group < 0 || group >= groups()) bad_pages(fmt::format("group {}", group), fmt::format("0 to {}", groups() - 1));
  return groups_[static_cast<size_t>(group)];
}

int32_t PageAllocator::total(int32_t group) const { return static_cast<int32_t>(at(group).references.size()) - 1; }

int32_t PageAllocator::free(int32_t group) const { return static_cast<int32_t>(at(group).free.size()); }

std::span<const int32_t> PageAllocator::references(int32_t group) const { return at(group).references; }

int32_t PageAllocator::references(int32_t group, int32_t page) const {
  const Group& pages = at(group);
  if (page < 1 || page > total(group))
    bad_pages(fmt::format("page {} of group {}", page, group), fmt::format("1 to {}", total(group)));
  return pages.references[static_cast<size_t>(page)];
}

int32_t& PageAllocator::held(int32_t group, int32_t page) {
  if (references(group, page) == 0) bad_pages(fmt::format("page {} of group {} is free", page, group), "a held page");
  return groups_[static_cast<size_t>(group)].references[static_cast<size_t>(page)];
}

int32_t PageAllocator::take(int32_t group) {
  if (free(group) == 0) return 0;
  Group& pages = groups_[static_cast<size_t>(group)];
  std::pop_heap(pages.free.begin(), pages.free.end(), std::greater<>());
  const int32_t page = pages.free.back();
  pages.free.pop_back();
  pages.references[static_cast<size_t>(page)] = 1;
  return page;
}

void PageAllocator::share(int32_t group, int32_t page) { ++held(group, page); }

void PageAllocator::release(int32_t group, int32_t page) {
  if (--held(group, page) != 0) return;
  Group& pages = groups_[static_cast<size_t>(group)];
  pages.free.push_back(page);  // there was room for every page
  std::push_heap(pages.free.begin(), pages.free.end(), std::greater<>());
}

void PageAllocator::check() const {
  for (int32_t group = 0; group < groups(); ++group) {
    const Group& pages = at(group);
    std::vector<bool> listed(pages.references.size());
    for (const int32_t page : pages.free) {
      if (page < 1 || page > total(group) || listed[static_cast<size_t>(page)])
        bad_pages(fmt::format("the free list of group {} holds page {}", group, page), "each page once");
      listed[static_cast<size_t>(page)] = true;
    }
    if (pages.references[0] != 0) bad_pages(fmt::format("the null page of group {} is held", group), "no reference");
    for (int32_t page = 1; page <= total(group); ++page) {
      const int32_t count = pages.references[static_cast<size_t>(page)];
      if (count < 0 || (count == 0) != listed[static_cast<size_t>(page)])
        bad_pages(fmt::format("page {} of group {} has {} references and is {}", page, group, count,
                              listed[static_cast<size_t>(page)] ? "in the free list" : "not in the free list"),
                  "either references or a place in the free list");
    }
    if (!std::is_heap(pages.free.begin(), pages.free.end(), std::greater<>()))
      bad_pages(fmt::format("the free list of group {}", group), "a heap");
  }
}

}  // namespace tandem::cache
