// allowed_token_ids and bad_words as a rule on which tokens may come next (spec/frontend.md D.2).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/tokenizer.h"

namespace tandem::api {

class TokenLists : public engine::TokenRule {
 public:
  // `allowed`: ids that may come, below vocab_size; empty: all. `banned`: sequences, none empty, of which the last
  // token may not come when the others are the reply's last tokens.
  TokenLists(const std::vector<int32_t>& allowed, std::vector<std::vector<int32_t>> banned, int64_t vocab_size);

  void mask(std::span<uint32_t> bits) override;
  void accept(int32_t token) override;

 private:
  std::vector<uint32_t> allowed_bits_;  // one for each id; empty: all
  std::vector<std::vector<int32_t>> banned_;
  size_t longest_ = 0;         // tokens of a banned sequence before its last one
  std::vector<int32_t> tail_;  // of the reply, at most longest_
};

// The token sequences that spell the words: each as it is and with one space in its place of leading spaces, since the
// same word has other tokens inside a line. Markers of added tokens count as those tokens.
std::vector<std::vector<int32_t>> word_tokens(const text::Tokenizer& tokenizer, const std::vector<std::string>& words);

}  // namespace tandem::api
