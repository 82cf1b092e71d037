// Prompt lookup (spec/speculation.md 5.4): when the last tokens of a stream were there before, what followed them then
// is drafted. An index of every place of the last 65,536 tokens, of fixed memory, is kept up as the stream grows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "draft/proposal.h"

namespace tandem::draft {

struct CopyOptions {
  int32_t match = 8;           // equal tokens that make a match, 2 to 64
  int32_t reply_match = 16;    // the same of a match outside the prompt; at least `match` counts
  int64_t window = 65536;      // last tokens searched, a power of two
  int32_t most_places = 1024;  // places with the same hash that a search looks at, the latest first
};

// Throws Error(usage) naming the option.
void check(const CopyOptions& options);

class CopyIndex {
 public:
  explicit CopyIndex(const CopyOptions& options = {});

  // Forgets the stream.
  void reset();
  static int64_t planned_bytes(const CopyOptions& options) { return 2 * options.window * int64_t{sizeof(int32_t)}; }
  // Indexes what `ids` has more than at the last call: tokens are only ever appended. Throws Error(internal) for fewer
  // ids than before.
  void update(std::span<const int32_t> ids);

  struct Match {
    int64_t next = 0;    // ids[next] followed the match
    int32_t tokens = 0;  // that follow it, at most the number wanted; 0: there is no match
    int32_t equal = 0;   // tokens before `next` that equal the stream's last, counted up to 64
  };
  // Of the last tokens of `ids`, which update() saw, with `wanted` ≥ 1 tokens to follow; the first `prompt` of the ids
  // are the prompt. The latest earlier place with all of the wanted tokens, else the one with most.
  Match find(std::span<const int32_t> ids, int64_t prompt, int32_t wanted) const;

  // find() as a proposal of up to `most` drafts; their confidence grows with the length of the match.
  void propose(std::span<const int32_t> ids, int64_t prompt, int32_t most, Proposal& proposal) const;

 private:
  static constexpr int32_t longest_match = 64;

  size_t head_of(std::span<const int32_t> ids, int64_t last) const;
  // Tokens up to ids[last] that equal those up to the last id, up to longest_match.
  int32_t equal_tokens(std::span<const int32_t> ids, int64_t last) const;

  CopyOptions options_;
  int64_t size_ = 0;            // ids indexed
  std::vector<int32_t> heads_;  // [window]: 1 + the latest place (last token of a match) with this hash; 0: none
  std::vector<int32_t> links_;  // [window]: of place p at p mod window: 1 + the place before with the same hash
};

}  // namespace tandem::draft
