// Records, their pages and the order in which they are evicted.
#include "cache/prefix_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "cache/prefix_index_digest.h"
#include "cache/prefix_index_tree.h"

namespace tandem::cache {
namespace {

constexpr size_t remembered_evictions = 1024;

[[noreturn]] void bad_index(const std::string& found, const std::string& expected = {}) {
  throw Error(ErrorCode::internal, "prefix index", found, expected);
}

struct Record {
  PrefixTree::Node node = -1;  // -1: free
  std::vector<int32_t> page_table;
  StateDigest digest;
  uint64_t last_use = 0;
  int32_t pins = 0;
  bool fork = false;
  bool used() const { return node >= 0; }
};

}  // namespace

struct PrefixIndex::Tree {
  PageAllocator& pages;
  int64_t page_rows;
  PrefixTree text;
  std::vector<Record> records;
  std::vector<std::vector<int32_t>> evictable;  // [groups][pages] references of states that are not pinned
  DigestRing evicted{remembered_evictions};
  mutable DigestSearch search;
  uint64_t uses = 0;
  int32_t states = 0;
  int64_t evictions = 0;

  Tree(int32_t count, PageAllocator& allocator, int64_t rows)
      : pages(allocator),
        page_rows(rows),
        records(static_cast<size_t>(count)),
        search(remembered_evictions + static_cast<size_t>(count)) {
    for (int32_t group = 0; group < pages.groups(); ++group)
      evictable.emplace_back(static_cast<size_t>(pages.total(group) + 1));
  }

  Record& used(int32_t record) {
    if (record < 0 || record >= std::ssize(records) || !records[static_cast<size_t>(record)].used())
      bad_index(fmt::format("record {} of {} holds no state", record, records.size()));
    return records[static_cast<size_t>(record)];
  }

  int64_t pages_of(int64_t length) const { return (length + page_rows - 1) / page_rows; }

  template <typename Visit>  // visit(group, page)
  void each_page(const std::vector<int32_t>& table, const Visit& visit) const {
    for (size_t entry = 0; entry < table.size(); ++entry)
      visit(static_cast<int32_t>(entry) % pages.groups(), table[entry]);
  }

  void count_evictable(const Record& record, int32_t change) {
    each_page(record.page_table, [&](int32_t group, int32_t page) {
      evictable[static_cast<size_t>(group)][static_cast<size_t>(page)] += change;
    });
  }

  bool superseded(const Record& record) const { return !record.fork && text.has_longer(record.node); }

  // The record that comes first by (rank, last use) among those that are not pinned and have a rank. -1: none.
  template <typename Rank>
  int32_t first_by(const Rank& rank) const {
    int32_t best = -1;
    std::pair<int, uint64_t> best_order;
    for (int32_t i = 0; i < std::ssize(records); ++i) {
      const Record& record = records[static_cast<size_t>(i)];
      if (!record.used() || record.pins > 0) continue;
      const std::optional<int> first = rank(record);
      if (!first) continue;
      const std::pair<int, uint64_t> order(*first, record.last_use);
      if (best < 0 || order < best_order) {
        best = i;
        best_order = order;
      }
    }
    return best;
  }

  int32_t victim() const {
    return first_by([this](const Record& record) { return std::optional(superseded(record) ? 0 : 1); });
  }

  // The last pages are the likeliest to be the record's alone.
  bool frees_page(const Record& record, int32_t group) const {
    const int32_t groups = pages.groups();
    for (int64_t entry = std::ssize(record.page_table) - 1; entry >= 0; --entry) {
      const int32_t page = record.page_table[static_cast<size_t>(entry)];
      if (entry % groups == group && pages.references(group, page) == 1) return true;
    }
    return false;
  }

  int32_t victim_for_page(int32_t group) const {
    return first_by([&](const Record& record) -> std::optional<int> {
      if (!text.has_longer(record.node)) return 1;
      return !record.fork && frees_page(record, group) ? 0 : 2;
    });
  }

  // Now, and with it what it continues: a prefix is in use as long as anything that goes on from it.
  void use_states_above(PrefixTree::Node node) {
    for (node = text.state_above(node); node >= 0; node = text.state_above(node)) {
      if (text.record(node) >= 0) records[static_cast<size_t>(text.record(node))].last_use = ++uses;
    }
  }

  void evict(int32_t number) {
    Record& record = records[static_cast<size_t>(number)];
    evicted.add(record.digest);
    text.erase(record.node);
    count_evictable(record, -1);
    each_page(record.page_table, [this](int32_t group, int32_t page) { pages.release(group, page); });
    record = Record{};
    --states;
    ++evictions;
  }

  int32_t free_record() const {
    const auto free = std::find_if(records.begin(), records.end(), [](const Record& r) { return !r.used(); });
    return free == records.end() ? -1 : static_cast<int32_t>(free - records.begin());
  }

  // The pages of a new state, with a reference each. They must be held by someone: nothing changes when one is not.
  std::vector<int32_t> hold_pages(int64_t length, std::span<const int32_t> page_table) {
    const int64_t count = pages_of(length);
    if (std::ssize(page_table) < count)
      bad_index(fmt::format("a page table of {} entries for {} tokens", page_table.size(), length),
                fmt::format("{} entries", count));
    std::vector<int32_t> table(page_table.begin(), page_table.begin() + count);
    each_page(table, [this](int32_t group, int32_t page) {
      if (pages.references(group, page) == 0) bad_index(fmt::format("page {} of group {} is free", page, group));
    });
    each_page(table, [this](int32_t group, int32_t page) { pages.share(group, page); });
    return table;
  }

  void mark_fork(PrefixTree::Node node) {
    if (node >= 0 && text.record(node) >= 0) records[static_cast<size_t>(text.record(node))].fork = true;
  }

  MissReason reason(std::span<const int32_t> ids, std::string_view salt, int64_t length, int64_t limit) const {
    if (length == std::min(limit, std::ssize(ids))) return MissReason::none;
    const uint64_t mine = digest_of_salt(salt);
    search.start(ids, length, limit);
    for (const StateDigest& digest : evicted.digests())
      if (digest.salt == mine) search.offer(digest, 0);
    for (const Record& record : records)
      if (record.used() && record.digest.salt != mine) search.offer(record.digest, 1);
    const int kind = search.finish();
    return kind < 0 ? MissReason::new_prefix : kind == 0 ? MissReason::evicted : MissReason::other_salt;
  }

  void check() const;
};

PrefixIndex::PrefixIndex(int32_t records, PageAllocator& pages, int64_t page_rows) {
  if (records < 0 || page_rows < 1) bad_index(fmt::format("{} records, {} rows of a page", records, page_rows));
  tree_ = std::make_unique<Tree>(records, pages, page_rows);
}

PrefixIndex::~PrefixIndex() = default;

Match PrefixIndex::find(std::span<const int32_t> ids, std::string_view salt, int64_t limit) const {
  const PrefixTree::Walk walk = tree_->text.walk(ids, salt, limit);
  Match match;
  if (walk.state >= 0) match.record = tree_->text.record(walk.state);
  match.length = walk.length;
  match.common = walk.common;
  match.departs = walk.departs;
  match.reason = tree_->reason(ids, salt, walk.length, limit);
  return match;
}

std::span<const int32_t> PrefixIndex::page_table(int32_t record) const { return tree_->used(record).page_table; }

int64_t PrefixIndex::length(int32_t record) const { return tree_->used(record).digest.length; }

void PrefixIndex::touch(int32_t record, bool fork) {
  Record& state = tree_->used(record);
  state.last_use = ++tree_->uses;
  tree_->use_states_above(state.node);
  state.fork = state.fork || fork;
}

void PrefixIndex::pin(int32_t record) {
  Record& state = tree_->used(record);
  if (state.pins++ == 0) tree_->count_evictable(state, -1);
}

void PrefixIndex::unpin(int32_t record) {
  Record& state = tree_->used(record);
  if (state.pins == 0) bad_index(fmt::format("record {} is not pinned", record));
  if (--state.pins == 0) tree_->count_evictable(state, 1);
}

Kept PrefixIndex::keep(std::span<const int32_t> ids, std::string_view salt, std::span<const int32_t> page_table,
                       bool fork) {
  Tree& tree = *tree_;
  const int64_t length = std::ssize(ids);
  if (length < 1) bad_index("a state of no tokens");
  const PrefixTree::Walk walk = tree.text.walk(ids, salt, length);
  if (walk.state >= 0 && walk.length == length) {
    touch(tree.text.record(walk.state), fork);
    return {tree.text.record(walk.state), false};
  }
  int32_t record = tree.free_record();
  if (record < 0 && tree.victim() < 0) return {};

  std::vector<int32_t> table = tree.hold_pages(length, page_table);
  // Into the tree first: a state that the new one supersedes is a better victim than another conversation's.
  const PrefixTree::Insertion inserted = tree.text.insert(ids, salt);
  tree.mark_fork(inserted.forked);
  const uint64_t now = ++tree.uses;
  tree.use_states_above(inserted.state);
  if (record < 0) {
    record = tree.victim();
    tree.evict(record);
  }
  Record& state = tree.records[static_cast<size_t>(record)];
  state.node = inserted.state;
  tree.text.set_record(inserted.state, record);
  state.page_table = std::move(table);
  state.digest = digest_of(ids, salt);
  state.last_use = now;
  state.fork = fork;
  tree.count_evictable(state, 1);
  ++tree.states;
  return {record, true};
}

bool PrefixIndex::evict() {
  const int32_t victim = tree_->victim();
  if (victim < 0) return false;
  tree_->evict(victim);
  return true;
}

bool PrefixIndex::evict_for_page(int32_t group) {
  const int32_t victim = tree_->victim_for_page(group);
  if (victim < 0) return false;
  tree_->evict(victim);
  return true;
}

void PrefixIndex::clear() {
  for (int32_t i = 0; i < records(); ++i) {
    const Record& record = tree_->records[static_cast<size_t>(i)];
    if (record.used() && record.pins == 0) tree_->evict(i);
  }
}

int32_t PrefixIndex::states() const { return tree_->states; }

int32_t PrefixIndex::records() const { return static_cast<int32_t>(tree_->records.size()); }

int32_t PrefixIndex::reclaimable(int32_t group) const {
  const std::span<const int32_t> references = tree_->pages.references(group);
  const std::vector<int32_t>& evictable = tree_->evictable[static_cast<size_t>(group)];
  int32_t count = 0;
  for (size_t page = 1; page < references.size(); ++page)
    count += static_cast<int32_t>(evictable[page] > 0) & static_cast<int32_t>(evictable[page] == references[page]);
  return count;
}

int64_t PrefixIndex::evictions() const { return tree_->evictions; }

int64_t PrefixIndex::text_ids() const { return tree_->text.ids(); }

void PrefixIndex::Tree::check() const {
  text.check();
  std::vector<std::vector<int32_t>> held = evictable, unpinned = evictable;
  for (auto& counts : held) std::fill(counts.begin(), counts.end(), 0);
  for (auto& counts : unpinned) std::fill(counts.begin(), counts.end(), 0);
  int32_t used = 0;
  for (int32_t i = 0; i < std::ssize(records); ++i) {
    const Record& record = records[static_cast<size_t>(i)];
    if (!record.used()) continue;
    ++used;
    if (!text.is_state(record.node) || text.record(record.node) != i ||
        text.length(record.node) != record.digest.length)
      bad_index(fmt::format("record {} and the tree disagree", i));
    if (std::ssize(record.page_table) != pages_of(record.digest.length))
      bad_index(fmt::format("record {} has {} pages for {} tokens", i, record.page_table.size(), record.digest.length));
    each_page(record.page_table, [&](int32_t group, int32_t page) {
      ++held[static_cast<size_t>(group)][static_cast<size_t>(page)];
      if (record.pins == 0) ++unpinned[static_cast<size_t>(group)][static_cast<size_t>(page)];
    });
  }
  if (used != states || used != text.states())
    bad_index(fmt::format("{} records, {} counted, {} in the tree", used, states, text.states()));
  if (unpinned != evictable) bad_index("the references of states that may be evicted are counted wrongly");
  for (int32_t group = 0; group < pages.groups(); ++group) {
    for (int32_t page = 1; page <= pages.total(group); ++page) {
      const int32_t states_hold = held[static_cast<size_t>(group)][static_cast<size_t>(page)];
      if (pages.references(group, page) < states_hold)
        bad_index(fmt::format("page {} of group {} has {} references", page, group, pages.references(group, page)),
                  fmt::format("at least the {} of the states", states_hold));
    }
  }
}

void PrefixIndex::check() const { tree_->check(); }

}  // namespace tandem::cache
