// Added tokens: contents that are found literally in the text before the pre-tokeniser sees it (spec/frontend.md B.4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;  // left out by skip_special
};

// The 36 contents of the model family in ascending order of their ids. Ids themselves differ between checkpoints.
std::span<const std::string_view> family_added_tokens();

// Finds added tokens, the leftmost first and of those the longest, which is how the reference resolves overlaps.
class AddedTokenMatcher {
 public:
  struct Match {
    std::size_t begin, end;  // bytes
    int32_t id;
  };

  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Appends the matches of `text`, ascending and not overlapping, with `offset` added to their positions.
  void find(std::string_view text, std::size_t offset, std::vector<Match>& matches) const;

 private:
  const AddedToken* longest_at(std::string_view rest) const;

  std::vector<AddedToken> tokens_;             // by first byte, then longest first
  std::array<std::uint32_t, 257> first_of_{};  // tokens_[first_of_[b] .. first_of_[b + 1]) begin with byte b
};

}  // namespace tandem::text
