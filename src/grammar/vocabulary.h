// The tokens as a grammar sees them: bytes. Added tokens and padding rows have none, since a grammar must never let
// them stand for the text that they are written with (spec/frontend.md E.4).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace tandem::grammar {

class Vocabulary {
 public:
  // `vocab_size`: rows of the head; ids from tokenizer.size() on have no bytes.
  Vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size);
  // Of bytes by id; empty: an added token.
  explicit Vocabulary(std::vector<std::string> bytes);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  int32_t size() const { return static_cast<int32_t>(bytes_.size()); }
  size_t words() const { return (bytes_.size() + 31) / 32; }  // of a mask: bit id % 32 of word id / 32
  const std::vector<std::string>& bytes() const { return bytes_; }
  std::string_view bytes_of(int32_t id) const { return bytes_[static_cast<size_t>(id)]; }
  bool has_text(int32_t id) const { return id >= 0 && id < size() && !bytes_[static_cast<size_t>(id)].empty(); }
  // The token of exactly these bytes (the smallest id); −1: none.
  int32_t find(std::string_view bytes) const;
  // One bit for each token that has bytes.
  std::span<const uint32_t> text_mask() const { return text_mask_; }
  // Tokens of at most `most_blanks` bytes, all of them space, line feed or tab.
  std::span<const int32_t> blanks() const { return blanks_; }

  static constexpr size_t most_blanks = 4;

 private:
  void index();

  std::vector<std::string> bytes_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::vector<uint32_t> text_mask_;
  std::vector<int32_t> blanks_;
};

}  // namespace tandem::grammar
