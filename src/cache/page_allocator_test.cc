// Pages are handed out lowest first, live as long as anyone holds them, and are never lost.
#include "cache/page_allocator.h"

#include <map>
#include <random>

#include "base/error.h"

namespace tandem::cache::page_allocator_test {
namespace {

TEST(PageAllocator, HandsOutTheLowestFreePageAndNeverTheNullPage) {
  PageAllocator pages(4);
  EXPECT_EQ(pages.total(0), 3);
  EXPECT_EQ(pages.take(0), 1);
  EXPECT_EQ(pages.take(0), 2);
  EXPECT_EQ(pages.take(0), 3);
  EXPECT_EQ(pages.take(0), 0);
  pages.release(0, 3);
  pages.release(0, 1);
  EXPECT_EQ(pages.free(0), 2);
  EXPECT_EQ(pages.take(0), 1);
  EXPECT_EQ(pages.take(0), 3);
  pages.check();
}

TEST(PageAllocator, APageIsFreeWithItsLastReference) {
  PageAllocator pages(2);
  const int32_t page = pages.take(0);
  EXPECT_EQ(pages.references(0, page), 1);
  pages.share(0, page);
  EXPECT_EQ(pages.references(0, page), 2);
  EXPECT_EQ(pages.references(0)[static_cast<size_t>(page)], 2);
  pages.release(0, page);
  EXPECT_EQ(pages.free(0), 0);
  pages.release(0, page);
  EXPECT_EQ(pages.free(0), 1);
  EXPECT_EQ(pages.references(0, page), 0);
  pages.check();
}

TEST(PageAllocator, GroupsAreApart) {
  PageAllocator pages(3, 2);
  EXPECT_EQ(pages.groups(), 2);
  EXPECT_EQ(pages.take(1), 1);
  EXPECT_EQ(pages.take(1), 2);
  EXPECT_EQ(pages.take(1), 0);
  EXPECT_EQ(pages.free(0), 2);
  EXPECT_EQ(pages.take(0), 1);
  EXPECT_EQ(pages.references(0, 2), 0);
  EXPECT_EQ(pages.references(1, 2), 1);
  pages.check();
}

TEST(PageAllocator, ThePoolMayBeEmpty) {
  PageAllocator pages(1);
  EXPECT_EQ(pages.total(0), 0);
  EXPECT_EQ(pages.take(0), 0);
  pages.check();
}

TEST(PageAllocator, MisuseIsAnError) {
  EXPECT_THROW(PageAllocator(0), Error);
  EXPECT_THROW(PageAllocator(4, 0), Error);
  PageAllocator pages(4, 2);
  EXPECT_THROW(pages.release(0, 1), Error);  // free
  EXPECT_THROW(pages.share(0, 1), Error);
  for (const int32_t page : {0, -1, 4}) {
    EXPECT_THROW(pages.share(0, page), Error) << page;
    EXPECT_THROW(pages.release(0, page), Error) << page;
    EXPECT_THROW(pages.references(0, page), Error) << page;
  }
  for (const int32_t group : {-1, 2}) {
    EXPECT_THROW(pages.take(group), Error);
    EXPECT_THROW(pages.free(group), Error);
    EXPECT_THROW(pages.total(group), Error);
  }
  pages.check();
}

TEST(PageAllocator, AgreesWithAMapOverRandomOperations) {
  constexpr int32_t groups = 2, total = 7;
  PageAllocator pages(total + 1, groups);
  std::map<int32_t, int32_t> held[groups];
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    const auto group = static_cast<int32_t>(random() % groups);
    auto& mine = held[group];
    const auto what = static_cast<int>(random() % 3);
    if (what == 0) {
      int32_t lowest = 1;
      while (mine.contains(lowest)) ++lowest;
      EXPECT_EQ(pages.take(group), lowest > total ? 0 : lowest);
      if (lowest <= total) mine[lowest] = 1;
    } else if (!mine.empty()) {
      const auto entry = std::next(mine.begin(), static_cast<int64_t>(random() % mine.size()));
      if (what == 1) {
        pages.share(group, entry->first);
        ++entry->second;
      } else {
        pages.release(group, entry->first);
        if (--entry->second == 0) mine.erase(entry);
      }
    }
    EXPECT_EQ(pages.free(group), total - static_cast<int32_t>(mine.size()));
    for (const auto& [page, count] : mine) EXPECT_EQ(pages.references(group, page), count);
    pages.check();
  }
}

}  // namespace
}  // namespace tandem::cache::page_allocator_test
