// Byte-level BPE from tokenizer.json (spec/frontend.md B): text to ids and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

// Whether spellings of added tokens ("<|user|>", "<think>") become those tokens or stay ordinary text (B.6).
enum class AddedTokens { recognise, literal };

struct TextSegment {
  std::string text;  // UTF-8
  AddedTokens added_tokens = AddedTokens::recognise;
};

class Tokenizer {
 public:
  // `path` is a model folder or a tokenizer.json. Throws Error(bad_file) naming what is missing or unexpected (wrong
  // pre-tokeniser expression, missing added tokens, holes in the vocabulary…).
  static Tokenizer load(const std::filesystem::path& path);
  static Tokenizer parse(std::string_view tokenizer_json, const std::string& where = "tokenizer.json");
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of valid UTF-8 text; invalid UTF-8 throws Error(usage). Thread-safe. Time is O(n log n) in the longest piece.
  std::vector<int32_t> encode(std::string_view text, AddedTokens added_tokens) const;
  // Segments are encoded as one text (a piece may cross from one segment into the next), except that added tokens are
  // recognised in the `recognise` segments only.
  std::vector<int32_t> encode(std::span<const TextSegment> segments) const;

  // Text of ids; skip_special leaves out tokens flagged special. Invalid bytes become U+FFFD, one per maximal subpart.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // Raw bytes of one token (maybe a part of a character); empty for ids without a token (padding rows).
  std::string_view token_bytes(int32_t id) const;
  int32_t size() const;  // one more than the largest id that has a token
  bool is_added(int32_t id) const;
  bool is_special(int32_t id) const;                                   // flagged special: left out by skip_special
  std::optional<int32_t> added_token(std::string_view content) const;  // id of "<|user|>", …

 private:
  struct Tables;
  explicit Tokenizer(std::unique_ptr<Tables> tables);
  std::unique_ptr<Tables> tables_;
};

// Turns a stream of token bytes into valid UTF-8 pieces (B.5): emits the longest complete prefix, holds back at most 3
// bytes that could still begin a character, writes U+FFFD for each maximal invalid subpart.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();  // flushes a held fragment as U+FFFD

 private:
  std::string held_;
};

}  // namespace tandem::text
