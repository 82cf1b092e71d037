// The texts of a quality run as windows of token ids, and the checksum that proves that two runs saw the same ones
// (spec/quantization.md 6.1).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tandem::eval {

struct EvalText {
  std::string name;  // "FILE", or "FILE:LINE" of a JSONL file
  std::string text;  // UTF-8
};

// JSONL of {"text": …} objects if the name ends in ".jsonl" or the first line is such an object, each line a text of
// its own (empty lines are skipped); else the whole is one text. Throws Error(bad_file) naming line and key.
std::vector<EvalText> parse_eval_texts(std::string_view bytes, const std::string& name);

using Sha256 = std::array<std::byte, 32>;
std::string hex(const Sha256& digest);

struct Window {
  size_t text = 0;          // its text's place
  int64_t first_token = 0;  // of the text
  std::vector<int32_t> ids;

  // Positions that have a successor: those that are measured.
  int64_t positions() const { return static_cast<int64_t>(ids.size()) - 1; }
};

struct Windows {
  int64_t size = 0;                // tokens of a full window
  std::vector<std::string> texts;  // names
  std::vector<Window> windows;
  Sha256 token_hash{};  // SHA-256 of all ids in order, each as four bytes, lowest first

  int64_t tokens() const, positions() const;
};

// Cuts each text, encoded with its special tokens recognised, into windows of `size` tokens side by side. The rest of a
// text is a shorter window if it has two tokens or more, so that something in it can be predicted. Throws
// Error(bad_file) naming a text of fewer than two tokens, one that is not UTF-8 and an id that is not below
// `vocab_size`; Error(usage) for a size below 2.
Windows cut_windows(std::span<const EvalText> texts, const text::Tokenizer& tokenizer, int64_t vocab_size,
                    int64_t size);

}  // namespace tandem::eval
