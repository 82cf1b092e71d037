// The kept states: which prefixes of tokens can be resumed, found by comparing tokens (design.md 5, spec/runtime.md
// b.4 to b.6). A prefix tree over token ids, one tree a salt; a state sits at the depth of its length and holds
// references to its pages and one record of the model's kept-state array. Text without a state below it goes, except up
// to 64 ids that followed a state below which none is left: forks there are still seen (b.5). Host-side bookkeeping
// only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/page_allocator.h"

namespace tandem::cache {

// Why a prompt was not resumed further than it was.
enum class MissReason {
  none,        // the whole prompt was kept
  new_prefix,  // nothing longer was ever kept
  evicted,     // a longer state had been kept and was evicted
  other_salt,  // a longer state is kept under another cache_salt
};

struct Match {
  int32_t record = -1;  // the longest kept state whose tokens are a prefix of (or equal to) the prompt; -1: none
  int64_t length = 0;   // its tokens
  int64_t common = 0;   // tokens that the prompt shares with the text of any state of this salt; ≥ length
  // The prompt goes on after `common`, and stored text goes on differently: conversations part here. With common ==
  // length that is touch()'s `fork`; with common > length a state kept there is one.
  bool departs = false;
  MissReason reason = MissReason::new_prefix;
};

struct Kept {
  int32_t record = -1;  // -1: no room, every record is pinned
  bool is_new = false;  // false: these tokens were kept already, nothing needs to be copied
};

class PrefixIndex {
 public:
  // `pages` must outlive the index. `records`: kept states at a time; 0: nothing is ever kept.
  PrefixIndex(int32_t records, PageAllocator& pages, int64_t page_rows);
  ~PrefixIndex();

  // The longest kept prefix with at most `limit` tokens (`common` has no limit). Changes nothing. O(prompt), and the
  // reason one pass over the states and the last 1,024 evicted ones.
  Match find(std::span<const int32_t> ids, std::string_view salt, int64_t limit) const;
  // The page table of a state: ceil(length / page_rows) entries.
  std::span<const int32_t> page_table(int32_t record) const;
  int64_t length(int32_t record) const;

  // A request resumed from this state: makes it, and the states that it continues, the most recently used ones. `fork`:
  // other conversations part here (the request's tokens leave the stored text at this state's end), so it is no older
  // turn of one conversation.
  void touch(int32_t record, bool fork);
  // Pinned states are not evicted: between the decision to restore or keep and the step that does it. Nests.
  void pin(int32_t record);
  void unpin(int32_t record);

  // Keeps the state of these tokens. page_table: at least ceil(n / page_rows) entries; references are added. When no
  // record is free the next victim is evicted; the new state counts as kept when it is chosen. `fork` as in touch(); a
  // state at whose end the new tokens leave other stored text becomes a fork by itself. Tokens kept already become the
  // most recently used. Throws Error(internal) for no tokens, a short page table, or a page that nobody holds.
  Kept keep(std::span<const int32_t> ids, std::string_view salt, std::span<const int32_t> page_table, bool fork);

  // Evicts one state for its record: superseded ones first (a longer state of the same conversation is kept and no
  // conversation forks here), then the least recently used; forks by recency only; pinned ones never. False if there is
  // none.
  bool evict();
  // Evicts one state for its pages: first superseded ones that hold a page of the group which nobody else holds; then
  // the least recently used one that no other state continues, whether or not it frees a page by itself (the states of
  // a conversation share their pages), so that conversations are given up from their ends and prefixes last. False if
  // every state is pinned.
  bool evict_for_page(int32_t group);
  // Drops every state (not the pinned ones); they count as evicted.
  void clear();

  int32_t states() const;
  int32_t records() const;
  // Pages of a group that would be free if every state that is not pinned were evicted.
  int32_t reclaimable(int32_t group) const;
  int64_t evictions() const;  // since the start
  int64_t text_ids() const;   // token ids held: at most those of all states and 64 for each

  // Throws Error(internal) unless the tree, the records and the page references agree. For tests.
  void check() const;

 private:
  struct Tree;
  std::unique_ptr<Tree> tree_;
};

}  // namespace tandem::cache
