// Byte-pair encoding of one piece (spec/frontend.md B.3). Constant after construction, so that any number of threads
// may encode at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tandem::text {

// Two neighbouring symbols and the symbol that replaces them. The rank is the merge's place in the list.
struct Merge {
  int32_t left, right, result;
};

// Lets a map with string keys be asked with a string_view.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using TokenMap = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

class Bpe {
 public:
  // `byte_ids`: the symbol of each byte. `merges` in rank order; a pair that comes twice counts with its later rank, as
  // in the reference. `tokens`: bytes and id of the base vocabulary; with `ignore_merges` a piece that is one of them
  // is that token whatever the merges say.
  Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges, TokenMap tokens, bool ignore_merges);

  // Appends the ids of `piece` (at most 2^31 - 1 bytes): the applicable merge of the lowest rank first, of equals the
  // leftmost. O(n log n) in the length of the piece.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

  static constexpr std::size_t kShortPiece = 48;  // bytes; up to here a plain scan beats a heap

 private:
  struct Entry {
    std::uint64_t pair = 0;
    int32_t rank = kNoRank;
    int32_t result = 0;
  };
  static constexpr int32_t kNoRank = INT32_MAX;

  static std::uint64_t key(int32_t left, int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slot(std::uint64_t pair) const;
  const Entry& find(int32_t left, int32_t right) const { return table_[slot(key(left, right))]; }
  void merge_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view piece, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Entry> table_;  // open addressing, a power of two, at most half full; rank kNoRank marks an empty slot
  TokenMap whole_;            // pieces known to become one token
};

}  // namespace tandem::text
