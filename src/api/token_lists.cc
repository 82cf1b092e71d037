// Bits of the lists, and the tail of the reply that bad words are compared with.
#include "api/token_lists.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace tandem::api {

TokenLists::TokenLists(const std::vector<int32_t>& allowed, std::vector<std::vector<int32_t>> banned,
                       int64_t vocab_size)
    : banned_(std::move(banned)) {
  if (!allowed.empty()) allowed_bits_.resize((static_cast<size_t>(vocab_size) + 31) / 32);
  for (const int32_t id : allowed) allowed_bits_[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  for (const auto& sequence : banned_) longest_ = std::max(longest_, sequence.size() - 1);
  tail_.reserve(longest_ + 1);  // nothing is allocated during a step
}

void TokenLists::mask(std::span<uint32_t> bits) {
  for (size_t i = 0; i < std::min(bits.size(), allowed_bits_.size()); ++i) bits[i] &= allowed_bits_[i];
  for (const auto& sequence : banned_) {
    const size_t before = sequence.size() - 1;
    if (before > tail_.size()) continue;
    const auto begin = tail_.end() - static_cast<std::ptrdiff_t>(before);
    if (!std::equal(begin, tail_.end(), sequence.begin())) continue;
    const int32_t last = sequence.back();
    bits[static_cast<size_t>(last) / 32] &= ~(1u << (last % 32));
  }
}

void TokenLists::accept(int32_t token) {
  if (longest_ == 0) return;
  tail_.push_back(token);
  if (tail_.size() > longest_) tail_.erase(tail_.begin());
}

std::vector<std::vector<int32_t>> word_tokens(const text::Tokenizer& tokenizer, const std::vector<std::string>& words) {
  std::vector<std::vector<int32_t>> sequences;
  const auto add = [&](const std::string& text) {
    std::vector<int32_t> ids = tokenizer.encode(text, text::AddedTokens::recognise);
    if (!ids.empty()) sequences.push_back(std::move(ids));
  };
  for (const std::string& word : words) {
    add(word);
    add(fmt::format(" {}", word.substr(std::min(word.find_first_not_of(' '), word.size()))));
  }
  std::sort(sequences.begin(), sequences.end());
  sequences.erase(std::unique(sequences.begin(), sequences.end()), sequences.end());
  return sequences;
}

}  // namespace tandem::api
