// The prefix index against a list of states that are compared token by token, over many random operations in worlds so
// small that everything happens: two letters, few records, tiny pools, salts, pins, forks.
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <random>

#include "base/error.h"
#include "cache/prefix_index.h"

namespace tandem::cache::prefix_index_model_test {
namespace {

using Ids = std::vector<int32_t>;

int64_t common(const Ids& a, const Ids& b) {
  int64_t n = 0;
  while (n < std::ssize(a) && n < std::ssize(b) && a[static_cast<size_t>(n)] == b[static_cast<size_t>(n)]) ++n;
  return n;
}

bool continues(const Ids& text, const Ids& prefix) {  // strictly
  return text.size() > prefix.size() && common(text, prefix) == std::ssize(prefix);
}

struct State {
  Ids ids, tail, table;
  std::string salt;
  int32_t record = -1, pins = 0;
  int64_t last_use = 0;
  bool fork = false;
  Ids text() const {
    Ids all = ids;
    all.insert(all.end(), tail.begin(), tail.end());
    return all;
  }
};

class Naive {
 public:
  explicit Naive(size_t records) : records_(records) {}
  std::vector<State> states;

  Match find(const Ids& ids, const std::string& salt, int64_t limit) const {
    Match match;
    for (const State& s : states) {
      if (s.salt != salt) continue;
      const bool prefix = common(s.ids, ids) == std::ssize(s.ids);
      if (prefix && std::ssize(s.ids) <= limit && std::ssize(s.ids) > match.length) {
        match.length = std::ssize(s.ids);
        match.record = s.record;
      }
      match.common = std::max(match.common, common(s.text(), ids));
    }
    for (const State& s : states) {
      match.departs |= s.salt == salt && match.common > 0 && match.common < std::ssize(ids) &&
                       common(s.text(), ids) == match.common && std::ssize(s.text()) > match.common;
    }
    match.reason = reason(ids, salt, match.length, std::min(limit, std::ssize(ids)));
    return match;
  }

  Kept keep(const Ids& ids, const std::string& salt, const Ids& table, bool fork) {
    for (State& s : states) {
      if (s.salt != salt || s.ids != ids) continue;
      s.fork |= fork;
      use(ids, salt);
      return {s.record, false};
    }
    if (states.size() >= records_ && victim() < 0) return {};
    State added{ids, {}, table, salt, -1, 0, ++uses_, fork};
    for (State& s : states) {
      if (s.salt != salt || !continues(ids, s.ids)) continue;
      bool followed = false, same = false;
      for (const State& other : states) {
        if (other.salt != salt || !continues(other.text(), s.ids)) continue;
        followed = true;
        same |= other.text()[s.ids.size()] == ids[s.ids.size()];
      }
      s.fork |= followed && !same;
    }
    for (State& s : states) {
      if (s.salt != salt || !continues(ids, s.ids)) continue;
      const Ids text = s.text();
      if (!s.tail.empty() && continues(text, ids)) added.tail.assign(text.begin() + std::ssize(ids), text.end());
      s.tail.clear();
    }
    states.push_back(added);
    use_above(ids, salt);
    if (states.size() > records_) evict(victim(states.size() - 1));
    return {-2, true};
  }

  // The state and then, longest first, those that it continues.
  void use(const Ids& ids, const std::string& salt) {
    for (State& s : states) {
      if (s.salt == salt && s.ids == ids) s.last_use = ++uses_;
    }
    use_above(ids, salt);
  }
  void use_above(const Ids& ids, const std::string& salt) {
    std::map<int64_t, State*, std::greater<>> above;
    for (State& s : states) {
      if (s.salt == salt && continues(ids, s.ids)) above[std::ssize(s.ids)] = &s;
    }
    for (const auto& [length, s] : above) s->last_use = ++uses_;
  }

  int64_t victim(size_t without = SIZE_MAX) const {
    const State* skipped = without < states.size() ? &states[without] : nullptr;
    return first([&](const State& s) { return &s == skipped ? -1 : superseded(s) && !s.fork ? 0 : 1; });
  }

  // frees(state): it holds a page that is wanted and that nobody else holds.
  template <typename Frees>
  int64_t page_victim(const Frees& frees) const {
    return first([&](const State& s) { return !superseded(s) ? 1 : !s.fork && frees(s) ? 0 : 2; });
  }

  // The first by (rank, last use) of those that are not pinned and whose rank is not −1.
  template <typename Rank>
  int64_t first(const Rank& rank) const {
    int64_t best = -1;
    std::pair<int, int64_t> best_order;
    for (size_t i = 0; i < states.size(); ++i) {
      const std::pair<int, int64_t> order(rank(states[i]), states[i].last_use);
      if (states[i].pins > 0 || order.first < 0 || (best >= 0 && best_order < order)) continue;
      best = static_cast<int64_t>(i);
      best_order = order;
    }
    return best;
  }

  void evict(int64_t number) {
    const State gone = states[static_cast<size_t>(number)];
    states.erase(states.begin() + number);
    evicted_.emplace_back(gone.salt, gone.ids);
    if (evicted_.size() > 1024) evicted_.pop_front();
    if (superseded(gone)) return;
    State* above = nullptr;
    for (State& s : states) {
      if (s.salt == gone.salt && continues(gone.ids, s.ids) && (above == nullptr || continues(s.ids, above->ids)))
        above = &s;
    }
    if (above == nullptr || superseded(*above)) return;
    const Ids text = gone.text();
    above->tail.assign(text.begin() + std::ssize(above->ids), text.end());
    above->tail.resize(std::min<size_t>(above->tail.size(), 64));
  }

  int64_t text_ids() const {  // every prefix of a text once
    std::map<std::pair<std::string, Ids>, bool> prefixes;
    for (const State& s : states) {
      Ids text = s.text();
      for (; !text.empty(); text.pop_back()) prefixes[{s.salt, text}] = true;
    }
    return std::ssize(prefixes);
  }

 private:
  bool superseded(const State& s) const {
    return std::any_of(states.begin(), states.end(),
                       [&](const State& other) { return other.salt == s.salt && continues(other.ids, s.ids); });
  }
  MissReason reason(const Ids& ids, const std::string& salt, int64_t length, int64_t limit) const {
    if (length == limit) return MissReason::none;
    const auto longer = [&](const Ids& other) {
      return std::ssize(other) > length && std::ssize(other) <= limit && common(other, ids) == std::ssize(other);
    };
    for (const auto& [other_salt, other] : evicted_)
      if (other_salt == salt && longer(other)) return MissReason::evicted;
    for (const State& s : states)
      if (s.salt != salt && longer(s.ids)) return MissReason::other_salt;
    return MissReason::new_prefix;
  }

  size_t records_;
  int64_t uses_ = 0;
  std::deque<std::pair<std::string, Ids>> evicted_;
};

class World {
 public:
  World(uint32_t seed, int32_t records, int32_t groups, uint32_t letters, uint32_t longest, int32_t pool)
      : random_(seed),
        letters_(letters),
        longest_(longest),
        pages_(pool, groups),
        index_(records, pages_, page_rows),
        naive_(static_cast<size_t>(records)) {}

  void step() {
    switch (below(8)) {
      case 0:
      case 1:
      case 2: keep(); break;
      case 3: below(2) == 0 ? evict() : evict_for_page(group(below(2))); break;
      case 4: pin_or_unpin(); break;
      case 5: touch(); break;
      default: find(); break;
    }
    if (below(500) == 0) clear();
    check();
  }

 private:
  static constexpr int64_t page_rows = 3;

  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  int32_t group(int64_t entry) const { return static_cast<int32_t>(entry % pages_.groups()); }
  std::string salt() { return below(4) == 0 ? "other" : ""; }

  // New ids, or those of a state cut or continued: with two letters forks are everywhere.
  Ids ids() {
    Ids ids;
    if (!naive_.states.empty() && below(3) != 0) {
      ids = naive_.states[below(static_cast<uint32_t>(naive_.states.size()))].text();
      ids.resize(below(static_cast<uint32_t>(ids.size()) + 1));
    }
    const uint32_t more = below(longest_);
    for (uint32_t i = 0; i < more; ++i) ids.push_back(static_cast<int32_t>(below(letters_)));
    if (ids.size() > 2 * longest_) ids.resize(2 * longest_);
    if (ids.empty()) ids.push_back(0);
    return ids;
  }

  void compare(const Match& found, const Match& expected) {
    EXPECT_EQ(found.record, expected.record);
    EXPECT_EQ(found.length, expected.length);
    EXPECT_EQ(found.common, expected.common);
    EXPECT_EQ(found.departs, expected.departs);
    EXPECT_EQ(found.reason, expected.reason);
  }

  void find() {
    const Ids prompt = ids();
    const std::string with = salt();
    const int64_t limit = below(2) == 0 ? std::ssize(prompt) : below(static_cast<uint32_t>(prompt.size()) + 1);
    compare(index_.find(prompt, with, limit), naive_.find(prompt, with, limit));
  }

  // As an engine does: the pages of the longest kept prefix, then fresh ones, evicting while there are none.
  void keep() {
    const Ids prompt = ids();
    const std::string with = salt();
    const Match match = index_.find(prompt, with, std::ssize(prompt));
    Ids table;
    const int64_t count = (std::ssize(prompt) + page_rows - 1) / page_rows;
    for (int64_t entry = 0; entry < match.length / page_rows; ++entry) {
      table.push_back(index_.page_table(match.record)[static_cast<size_t>(entry)]);
      pages_.share(group(entry), table.back());
    }
    bool enough = true;
    while (enough && std::ssize(table) < count) {
      const int32_t page = pages_.take(group(std::ssize(table)));
      if (page > 0) {
        table.push_back(page);
      } else {
        enough = below(4) == 0 ? evict() : evict_for_page(group(std::ssize(table)));
      }
    }
    if (enough) {
      const bool fork = below(6) == 0;
      const Kept kept = index_.keep(prompt, with, table, fork), expected = naive_.keep(prompt, with, table, fork);
      EXPECT_EQ(kept.is_new, expected.is_new);
      if (kept.is_new) {
        naive_.states.back().record = kept.record;
      } else {
        EXPECT_EQ(kept.record, expected.record);
      }
    }
    for (int64_t entry = 0; entry < std::ssize(table); ++entry)
      pages_.release(group(entry), table[static_cast<size_t>(entry)]);
  }

  bool evict() {
    const int64_t victim = naive_.victim();
    if (victim >= 0) naive_.evict(victim);
    EXPECT_EQ(index_.evict(), victim >= 0);
    return victim >= 0;
  }

  bool evict_for_page(int32_t wanted) {
    const int64_t victim = naive_.page_victim([&](const State& s) {
      for (int64_t entry = 0; entry < std::ssize(s.table); ++entry) {
        if (group(entry) == wanted && pages_.references(wanted, s.table[static_cast<size_t>(entry)]) == 1) return true;
      }
      return false;
    });
    if (victim >= 0) naive_.evict(victim);
    EXPECT_EQ(index_.evict_for_page(wanted), victim >= 0);
    return victim >= 0;
  }

  void clear() {
    while (naive_.victim() >= 0) {  // in the order of records, which the tails depend on
      int64_t lowest = -1;
      for (size_t i = 0; i < naive_.states.size(); ++i) {
        const State& s = naive_.states[i];
        if (s.pins == 0 && (lowest < 0 || s.record < naive_.states[static_cast<size_t>(lowest)].record))
          lowest = static_cast<int64_t>(i);
      }
      naive_.evict(lowest);
    }
    index_.clear();
  }

  State* any() {
    return naive_.states.empty() ? nullptr : &naive_.states[below(static_cast<uint32_t>(naive_.states.size()))];
  }

  void pin_or_unpin() {
    State* state = any();
    if (state == nullptr) return;
    if (state->pins > 0 && below(4) != 0) {
      --state->pins;
      index_.unpin(state->record);
    } else {
      ++state->pins;
      index_.pin(state->record);
    }
  }

  void touch() {
    State* state = any();
    if (state == nullptr) return;
    const bool fork = below(6) == 0;
    compare(index_.find(state->ids, state->salt, std::ssize(state->ids)),
            naive_.find(state->ids, state->salt, std::ssize(state->ids)));
    Ids again = state->ids;
    index_.touch(state->record, fork);
    EXPECT_FALSE(naive_.keep(again, state->salt, {}, fork).is_new);  // which is a touch
  }

  void check() {
    index_.check();
    pages_.check();
    EXPECT_EQ(index_.states(), std::ssize(naive_.states));
    EXPECT_EQ(index_.text_ids(), naive_.text_ids());
    std::map<std::pair<int64_t, int32_t>, std::pair<int32_t, int32_t>> held;  // references, those of pinned states
    for (const State& s : naive_.states) {
      ASSERT_TRUE(std::equal(s.table.begin(), s.table.end(), index_.page_table(s.record).begin(),
                             index_.page_table(s.record).end()));
      EXPECT_EQ(index_.length(s.record), std::ssize(s.ids));
      for (int64_t entry = 0; entry < std::ssize(s.table); ++entry) {
        auto& [all, pinned] = held[{entry % pages_.groups(), s.table[static_cast<size_t>(entry)]}];
        ++all;
        pinned += s.pins > 0 ? 1 : 0;
      }
    }
    for (int32_t group = 0; group < pages_.groups(); ++group) {
      int32_t reclaimable = 0;
      for (int32_t page = 1; page <= pages_.total(group); ++page) {
        const auto [all, pinned] = held[{group, page}];
        EXPECT_EQ(pages_.references(group, page), all);
        reclaimable += all > 0 && pinned == 0 ? 1 : 0;
      }
      EXPECT_EQ(index_.reclaimable(group), reclaimable);
    }
  }

  std::mt19937 random_;
  uint32_t letters_, longest_;
  PageAllocator pages_;
  PrefixIndex index_;
  Naive naive_;
};

void run(uint32_t worlds, int steps, uint32_t letters, uint32_t longest, int32_t pool) {
  for (uint32_t seed = 0; seed < worlds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, static_cast<int32_t>(1 + seed % 7), static_cast<int32_t>(1 + seed % 2), letters, longest, pool);
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(i);
      world.step();
    }
  }
}

TEST(PrefixIndexModel, TwoLetters) { run(28, 400, 2, 6, 12); }
TEST(PrefixIndexModel, MoreRoomThanStates) { run(14, 300, 3, 10, 200); }
TEST(PrefixIndexModel, TextsLongerThanATail) { run(14, 120, 2, 90, 200); }
TEST(PrefixIndexModel, MoreEvictionsThanAreRemembered) { run(2, 8000, 2, 5, 6); }

}  // namespace
}  // namespace tandem::cache::prefix_index_model_test
