// Each rule of the kept states by itself (design.md 5, spec/runtime.md b.4 to b.6).
#include "cache/prefix_index.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>

#include "base/error.h"

namespace tandem::cache::prefix_index_test {
namespace {

using Ids = std::vector<int32_t>;

Ids numbers(int32_t from, int32_t count) {
  Ids ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), from);
  return ids;
}

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Index over a pool of pages of 4 rows whose states get fresh pages, held by the states alone.
struct Fixture {
  PageAllocator pages;
  PrefixIndex index;
  explicit Fixture(int32_t records, int32_t pool = 4096, int32_t groups = 1)
      : pages(pool, groups), index(records, pages, 4) {}

  Ids take(int64_t length) {
    Ids table;
    for (int64_t entry = 0; entry < (length + 3) / 4; ++entry)
      table.push_back(pages.take(static_cast<int32_t>(entry) % pages.groups()));
    return table;
  }
  void drop(const Ids& table) {
    for (size_t entry = 0; entry < table.size(); ++entry)
      pages.release(static_cast<int32_t>(entry) % pages.groups(), table[entry]);
  }
  Kept keep(const Ids& ids, bool fork = false, const std::string& salt = "") {
    const Ids table = take(std::ssize(ids));
    const Kept kept = index.keep(ids, salt, table, fork);
    drop(table);
    index.check();
    return kept;
  }
  Match find(const Ids& ids, const std::string& salt = "") const { return index.find(ids, salt, std::ssize(ids)); }
  bool has(const Ids& ids, const std::string& salt = "") const { return find(ids, salt).length == std::ssize(ids); }
};

TEST(PrefixIndex, TheLongestPrefixAtAnyPosition) {
  Fixture f(8);
  const Ids text = numbers(0, 100);
  const int32_t short_one = f.keep(numbers(0, 7)).record, long_one = f.keep(numbers(0, 50)).record;
  Match match = f.find(text);
  EXPECT_EQ(match.record, long_one);
  EXPECT_EQ(match.length, 50);
  EXPECT_EQ(match.common, 50);
  EXPECT_FALSE(match.departs);  // the text ends there
  match = f.find(numbers(0, 49));
  EXPECT_EQ(match.record, short_one);
  EXPECT_EQ(match.common, 49);
  EXPECT_FALSE(match.departs);  // the prompt ends there
  match = f.find(numbers(0, 20) + numbers(500, 5));
  EXPECT_EQ(match.length, 7);
  EXPECT_EQ(match.common, 20);
  EXPECT_TRUE(match.departs);
  EXPECT_EQ(f.find(numbers(0, 50)).length, 50);  // an equal prompt
  EXPECT_EQ(f.find(numbers(1, 50)).record, -1);
  EXPECT_EQ(f.find({}).record, -1);
  EXPECT_EQ(f.index.length(long_one), 50);
  EXPECT_EQ(std::ssize(f.index.page_table(long_one)), 13);
}

TEST(PrefixIndex, TheLimitBindsTheStateAndNotTheCommonText) {
  Fixture f(8);
  f.keep(numbers(0, 10));
  f.keep(numbers(0, 20));
  const Match match = f.index.find(numbers(0, 20), "", 19);
  EXPECT_EQ(match.length, 10);
  EXPECT_EQ(match.common, 20);
  EXPECT_EQ(f.index.find(numbers(0, 20), "", 0).record, -1);
}

// A conversation as an engine leaves it: states at several lengths, one after the other on the same pages.
void keep_conversation(Fixture& f, const Ids& ids, std::initializer_list<int64_t> lengths) {
  const Ids table = f.take(std::ssize(ids));
  for (const int64_t length : lengths)
    f.index.keep(std::span(ids).first(static_cast<size_t>(length)), "", table, false);
  f.drop(table);
}

TEST(PrefixIndex, PagesComeFromWhereTheyAreFreedAndNotFromSharedPrefixes) {
  Fixture f(100, 41);
  for (int32_t i = 0; i < 4; ++i) keep_conversation(f, numbers(1000 * i, 40), {12, 30, 39, 40});  // 10 pages each
  ASSERT_EQ(f.pages.free(0), 0);
  f.index.touch(f.find(numbers(0, 12)).record, false);  // the first prompt again: its longer states are old
  EXPECT_TRUE(f.index.evict_for_page(0));
  EXPECT_TRUE(f.index.evict_for_page(0));
  EXPECT_GT(f.pages.free(0), 0);
  // Two states held the end of the least recently used conversation. No other state was lost for it.
  EXPECT_EQ(f.index.states(), 14);
  for (int32_t i = 0; i < 4; ++i) EXPECT_TRUE(f.has(numbers(1000 * i, 12)));
  while (f.pages.free(0) < 30) ASSERT_TRUE(f.index.evict_for_page(0));
  EXPECT_TRUE(f.has(numbers(0, 12)));  // what is in use stays to the last
}

TEST(PrefixIndex, APrefixIsInUseAsLongAsWhatContinuesIt) {
  Fixture f(3);
  f.keep(numbers(0, 8), true);
  f.keep(numbers(500, 8), true);
  const int32_t longer = f.keep(numbers(0, 20), true).record;
  f.index.touch(longer, false);
  f.keep(numbers(900, 8));
  EXPECT_TRUE(f.has(numbers(0, 8)));
  EXPECT_FALSE(f.has(numbers(500, 8)));
}

TEST(PrefixIndex, TheSameTokensAreKeptOnce) {
  Fixture f(8);
  const Kept first = f.keep(numbers(0, 9)), again = f.keep(numbers(0, 9));
  EXPECT_TRUE(first.is_new);
  EXPECT_FALSE(again.is_new);
  EXPECT_EQ(first.record, again.record);
  EXPECT_EQ(f.index.states(), 1);
  EXPECT_EQ(f.pages.total(0) - f.pages.free(0), 3);
}

TEST(PrefixIndex, PagesAreSharedAndLeaveWithTheLastState) {
  Fixture f(4);
  const Ids table = f.take(10);
  f.index.keep(numbers(0, 10), "", table, false);
  f.index.keep(numbers(0, 5), "", table, false);
  EXPECT_EQ(f.pages.references(0, table[1]), 3);  // this test's, and one of each state
  EXPECT_EQ(f.pages.references(0, table[2]), 2);  // the short one does not reach it
  EXPECT_EQ(f.index.reclaimable(0), 0);
  f.drop(table);
  EXPECT_EQ(f.index.reclaimable(0), 3);
  f.index.pin(f.find(numbers(0, 5)).record);
  EXPECT_EQ(f.index.reclaimable(0), 1);
  EXPECT_TRUE(f.index.evict());
  EXPECT_FALSE(f.index.evict());
  EXPECT_EQ(f.pages.free(0), f.pages.total(0) - 2);
  f.index.unpin(f.find(numbers(0, 5)).record);
  EXPECT_TRUE(f.index.evict());
  EXPECT_EQ(f.pages.free(0), f.pages.total(0));
  f.index.check();
  f.pages.check();
}

TEST(PrefixIndex, EntriesOfATableAlternateBetweenTheGroups) {
  Fixture f(4, 64, 2);
  const Ids table = f.take(12);
  f.index.keep(numbers(0, 12), "", table, false);
  f.drop(table);
  EXPECT_EQ(f.pages.total(0) - f.pages.free(0), 2);
  EXPECT_EQ(f.pages.total(1) - f.pages.free(1), 1);
  EXPECT_EQ(f.index.reclaimable(0), 2);
  EXPECT_EQ(f.index.reclaimable(1), 1);
  f.index.check();
  f.index.clear();
  EXPECT_EQ(f.pages.free(0) + f.pages.free(1), f.pages.total(0) + f.pages.total(1));
}

TEST(PrefixIndex, SaltsShareNothing) {
  Fixture f(8);
  f.keep(numbers(0, 10), false, "a");
  EXPECT_FALSE(f.has(numbers(0, 10), "b"));
  EXPECT_EQ(f.find(numbers(0, 10), "b").common, 0);
  EXPECT_EQ(f.find(numbers(0, 10), "b").reason, MissReason::other_salt);
  EXPECT_EQ(f.find(numbers(0, 10)).reason, MissReason::other_salt);
  EXPECT_TRUE(f.keep(numbers(0, 10), false, "b").is_new);
  EXPECT_TRUE(f.has(numbers(0, 10), "a"));
  const std::string with_nul("a\0", 2);
  EXPECT_FALSE(f.has(numbers(0, 10), with_nul));
}

TEST(PrefixIndex, SupersededStatesLeaveFirstThenTheOldest) {
  Fixture f(4);
  f.keep(numbers(0, 10));    // first turn
  f.keep(numbers(500, 10));  // another conversation
  f.keep(numbers(0, 20));    // second turn: the first is superseded
  f.keep(numbers(700, 10));
  f.index.touch(f.find(numbers(0, 10)).record, false);
  f.keep(numbers(900, 10));
  EXPECT_FALSE(f.has(numbers(0, 10)));  // most recently used, and superseded
  f.keep(numbers(1100, 10));
  EXPECT_FALSE(f.has(numbers(500, 10)));  // nothing is superseded: the oldest
  EXPECT_TRUE(f.has(numbers(0, 20)));
  f.index.touch(f.find(numbers(0, 20)).record, false);
  f.keep(numbers(1300, 10));
  EXPECT_FALSE(f.has(numbers(700, 10)));
  EXPECT_EQ(f.index.evictions(), 3);
}

TEST(PrefixIndex, AStateSupersededByTheNewOneMakesRoomForIt) {
  Fixture f(2);
  f.keep(numbers(500, 10));
  f.keep(numbers(0, 10));
  f.keep(numbers(0, 20));
  EXPECT_TRUE(f.has(numbers(500, 10)));  // older, but the only state of its conversation
  EXPECT_FALSE(f.has(numbers(0, 10)));
}

TEST(PrefixIndex, ForksAreVictimsByRecencyOnly) {
  Fixture f(3);
  const Ids system = numbers(0, 10);
  f.keep(system, true);
  f.keep(system + numbers(100, 5));
  f.keep(system + numbers(200, 5));
  f.index.touch(f.find(system).record, false);
  f.keep(numbers(500, 5));
  EXPECT_TRUE(f.has(system));  // a rule of superseded states would have dropped it
  EXPECT_FALSE(f.has(system + numbers(100, 5)));
}

TEST(PrefixIndex, AStateWhereTextsPartIsAForkByItself) {
  Fixture f(3);
  const Ids system = numbers(0, 10);
  f.keep(system);
  f.keep(system + numbers(100, 5));
  f.keep(system + numbers(200, 5));
  f.index.touch(f.find(system).record, false);
  f.keep(numbers(500, 5));
  EXPECT_TRUE(f.has(system));

  Fixture same(2);  // a conversation that only goes on: superseded
  same.keep(system);
  same.keep(system + numbers(100, 5));
  same.index.touch(same.find(system).record, false);
  same.keep(numbers(500, 5));
  EXPECT_FALSE(same.has(system));
}

TEST(PrefixIndex, WhatFollowedAStateIsRememberedFor64Ids) {
  Fixture f(8);
  const Ids text = numbers(0, 300);
  f.keep(numbers(0, 100));
  const int32_t turn = f.keep(numbers(0, 300)).record;
  f.index.pin(f.find(numbers(0, 100)).record);
  EXPECT_TRUE(f.index.evict());
  f.index.unpin(f.find(numbers(0, 100)).record);
  EXPECT_THROW(f.index.length(turn), Error);
  f.index.check();
  EXPECT_EQ(f.find(text).common, 164);
  EXPECT_FALSE(f.find(text).departs);  // the text was cut, nobody departs from it
  EXPECT_EQ(f.index.text_ids(), 164);
  const Match fork = f.find(numbers(0, 100) + numbers(900, 3));
  EXPECT_EQ(fork.common, 100);
  EXPECT_TRUE(fork.departs);
  EXPECT_TRUE(f.find(numbers(0, 130) + numbers(900, 3)).departs);
  // The next state below shows where forks leave; the tail goes, and the state was a fork.
  f.keep(numbers(0, 100) + numbers(900, 3));
  EXPECT_EQ(f.find(text).common, 100);
  EXPECT_EQ(f.index.text_ids(), 103);
}

TEST(PrefixIndex, TailsEndWhereTheyAreNeededNoLonger) {
  Fixture f(8);
  f.keep(numbers(0, 100));
  f.keep(numbers(0, 300));
  f.index.pin(f.find(numbers(0, 100)).record);
  f.index.evict();
  f.keep(numbers(0, 120));  // inside the tail, whose rest is now its own
  EXPECT_EQ(f.index.text_ids(), 164);
  f.keep(numbers(0, 200));  // through it
  EXPECT_EQ(f.index.text_ids(), 200);
  EXPECT_EQ(f.find(numbers(0, 200)).length, 200);
  f.index.clear();  // all but the pinned
  f.index.check();
  EXPECT_EQ(f.index.states(), 1);
  EXPECT_EQ(f.index.text_ids(), 164);
  f.index.unpin(f.find(numbers(0, 100)).record);
  f.index.clear();
  EXPECT_EQ(f.index.text_ids(), 0);
  EXPECT_EQ(f.find(numbers(0, 300)).common, 0);
}

TEST(PrefixIndex, TextBesideAnotherStateGoesWithItsOwn) {
  Fixture f(8);
  f.keep(numbers(0, 100));
  f.keep(numbers(0, 200));
  f.keep(numbers(0, 150) + numbers(900, 50));
  f.index.touch(f.find(numbers(0, 100)).record, false);
  f.index.pin(f.find(numbers(0, 100)).record);
  f.index.touch(f.find(numbers(0, 200)).record, false);
  EXPECT_TRUE(f.index.evict());
  f.index.check();
  EXPECT_EQ(f.find(numbers(0, 150) + numbers(900, 50)).common, 150);
  EXPECT_EQ(f.index.text_ids(), 200);
}

TEST(PrefixIndex, TheReasonOfAMiss) {
  Fixture f(2);
  EXPECT_EQ(f.find(numbers(0, 10)).reason, MissReason::new_prefix);
  f.keep(numbers(0, 10));
  EXPECT_EQ(f.find(numbers(0, 10)).reason, MissReason::none);
  EXPECT_EQ(f.index.find(numbers(0, 11), "", 10).reason, MissReason::none);  // no more was wanted
  EXPECT_EQ(f.find(numbers(0, 11)).reason, MissReason::new_prefix);
  f.keep(numbers(500, 10));
  f.keep(numbers(700, 10));
  EXPECT_EQ(f.find(numbers(0, 11)).reason, MissReason::evicted);
  EXPECT_EQ(f.find(numbers(0, 9)).reason, MissReason::new_prefix);  // shorter than what was evicted
  EXPECT_EQ(f.index.find(numbers(0, 11), "", 9).reason, MissReason::new_prefix);
  EXPECT_EQ(f.find(numbers(1, 11)).reason, MissReason::new_prefix);
  EXPECT_EQ(f.find(numbers(0, 11), "x").reason, MissReason::new_prefix);  // evicted, but under another salt
  f.keep(numbers(0, 10));
  EXPECT_EQ(f.find(numbers(0, 11)).reason, MissReason::new_prefix);  // nothing longer than what is kept
  EXPECT_EQ(f.find(numbers(0, 11), "x").reason, MissReason::other_salt);
}

TEST(PrefixIndex, EvictionsAreRememberedFor1024States) {
  Fixture f(1);
  f.keep(numbers(0, 10));
  for (int32_t i = 1; i <= 1024; ++i) f.keep(numbers(i * 100, 10));
  EXPECT_EQ(f.find(numbers(0, 10)).reason, MissReason::evicted);
  f.keep(numbers(1025 * 100, 10));
  EXPECT_EQ(f.find(numbers(0, 10)).reason, MissReason::new_prefix);
  EXPECT_EQ(f.find(numbers(100, 10)).reason, MissReason::evicted);
}

TEST(PrefixIndex, PinnedStatesStayAndPinsNest) {
  Fixture f(1);
  const int32_t record = f.keep(numbers(0, 10)).record;
  f.index.pin(record);
  f.index.pin(record);
  f.index.unpin(record);
  EXPECT_FALSE(f.index.evict());
  const Kept refused = f.keep(numbers(500, 10));
  EXPECT_EQ(refused.record, -1);
  EXPECT_FALSE(refused.is_new);
  EXPECT_EQ(f.find(numbers(500, 10)).common, 0);  // nothing of it stays
  EXPECT_EQ(f.pages.total(0) - f.pages.free(0), 3);
  EXPECT_FALSE(f.keep(numbers(0, 10)).is_new);
  f.index.unpin(record);
  EXPECT_EQ(f.keep(numbers(500, 10)).record, record);
}

TEST(PrefixIndex, WithoutRecordsNothingIsKept) {
  Fixture f(0);
  EXPECT_EQ(f.keep(numbers(0, 10)).record, -1);
  EXPECT_EQ(f.find(numbers(0, 10)).reason, MissReason::new_prefix);
  EXPECT_FALSE(f.index.evict());
  EXPECT_EQ(f.index.reclaimable(0), 0);
}

TEST(PrefixIndex, MisuseIsAnErrorAndChangesNothing) {
  Fixture f(2, 8);
  EXPECT_THROW(f.index.keep({}, "", {}, false), Error);
  const Ids table = f.take(8);
  EXPECT_THROW(f.index.keep(numbers(0, 9), "", table, false), Error);
  EXPECT_THROW(f.index.keep(numbers(0, 8), "", Ids{table[0], 0}, false), Error);
  EXPECT_THROW(f.index.keep(numbers(0, 8), "", Ids{table[0], 7}, false), Error);  // free
  EXPECT_THROW(f.index.keep(numbers(0, 8), "", Ids{table[0], 8}, false), Error);
  EXPECT_EQ(f.pages.references(0, table[0]), 1);
  EXPECT_EQ(f.find(numbers(0, 8)).common, 0);
  for (const int32_t record : {-1, 0, 2}) {
    EXPECT_THROW(f.index.pin(record), Error);
    EXPECT_THROW(f.index.unpin(record), Error);
    EXPECT_THROW(f.index.touch(record, true), Error);
    EXPECT_THROW(f.index.page_table(record), Error);
    EXPECT_THROW(f.index.length(record), Error);
  }
  const int32_t record = f.index.keep(numbers(0, 8), "", table, false).record;
  EXPECT_THROW(f.index.unpin(record), Error);
  EXPECT_THROW(PrefixIndex(-1, f.pages, 4), Error);
  EXPECT_THROW(PrefixIndex(1, f.pages, 0), Error);
  f.index.check();
  f.drop(table);
}

TEST(PrefixIndex, CheckSeesAPageThatWasReleasedTooOften) {
  Fixture f(2);
  const int32_t record = f.keep(numbers(0, 8)).record;
  f.pages.release(0, f.index.page_table(record)[0]);
  EXPECT_THROW(f.index.check(), Error);
}

// A chain as long as there are records must not need a deep stack or quadratic time.
TEST(PrefixIndex, ManyStatesOfOneConversation) {
  constexpr int32_t records = 20'000;
  PageAllocator pages(2);
  const Ids table(1, pages.take(0));
  PrefixIndex index(records, pages, int64_t{1} << 20);
  const Ids text = numbers(0, records + 10);
  for (int32_t length = 1; length <= records; length += 199)
    index.keep(std::span(text).first(static_cast<size_t>(length)), "", table, false);
  EXPECT_EQ(index.find(text, "", records).length, 1 + (records - 1) / 199 * 199);
  index.check();
  index.clear();
  index.check();
}

// Times of one operation at 1,000 records and prompts of 20,000 tokens: printed, and far below a step.
class Cost : public testing::Test {
 protected:
  static constexpr int32_t records = 1000, length = 20'000, common_pages = 40, pages_of_prompt = 79;
  PageAllocator pages_{records * 45};
  PrefixIndex index_{records, pages_, 256};
  Ids system_ = numbers(0, length / 2), shared_;

  Cost() {
    for (int i = 0; i < common_pages; ++i) shared_.push_back(pages_.take(0));
  }
  Ids prompt(int32_t i) const { return system_ + numbers(100'000 * (i + 1), length / 2); }

  template <typename Body>
  static void timed(std::vector<double>& times, const Body& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  static double median(std::vector<double> times) {
    std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
    return times[times.size() / 2];
  }
  void keep(std::vector<double>& times, const Ids& ids) {
    Ids table = shared_;
    while (std::ssize(table) < pages_of_prompt) table.push_back(pages_.take(0));
    timed(times, [&] { index_.keep(ids, "", table, false); });
    for (size_t i = common_pages; i < table.size(); ++i) pages_.release(0, table[i]);
  }
};

TEST_F(Cost, AtAThousandRecords) {
  std::vector<double> find, keeps, evict, reclaimable, unused;
  for (int32_t i = 0; i < 2 * records; ++i) keep(unused, prompt(i));  // half of them evicted and remembered
  for (int32_t i = 0; i < 100; ++i) {
    const Ids ids = prompt(i % 2 == 0 ? 2 * records - i : i);  // kept, evicted
    timed(find, [&] { index_.find(ids, "", length); });
    timed(reclaimable, [&] { index_.reclaimable(0); });
    keep(keeps, prompt(2 * records + i));  // evicts one
    timed(evict, [&] { index_.evict(); });
    keep(unused, prompt(3 * records + i));
  }
  std::printf("us: find %.1f, keep with eviction %.1f, evict %.1f, reclaimable %.1f\n", median(find), median(keeps),
              median(evict), median(reclaimable));
  EXPECT_LT(median(find) + median(keeps) + median(evict), 10'000);  // a wrong order of magnitude on any machine
}

}  // namespace
}  // namespace tandem::cache::prefix_index_test
