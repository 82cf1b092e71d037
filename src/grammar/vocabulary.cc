// Token bytes by id and ids by bytes.
#include "grammar/vocabulary.h"

#include <algorithm>
#include <utility>

namespace tandem::grammar {

namespace {

std::vector<std::string> bytes_of_tokens(const text::Tokenizer& tokenizer, int64_t vocab_size) {
  std::vector<std::string> bytes(static_cast<size_t>(vocab_size));
  const auto named = static_cast<int32_t>(std::min<int64_t>(tokenizer.size(), vocab_size));
  for (int32_t id = 0; id < named; ++id) {
    if (!tokenizer.is_added(id)) bytes[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  return bytes;
}

}  // namespace

Vocabulary::Vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size)
    : Vocabulary(bytes_of_tokens(tokenizer, vocab_size)) {}

Vocabulary::Vocabulary(std::vector<std::string> bytes) : bytes_(std::move(bytes)) { index(); }

void Vocabulary::index() {
  text_mask_.resize(words());
  ids_.reserve(bytes_.size());
  for (int32_t id = 0; id < size(); ++id) {
    const std::string_view bytes = bytes_of(id);
    if (bytes.empty()) continue;
    text_mask_[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
    ids_.emplace(bytes, id);
    const bool is_blank = bytes.find_first_not_of(" \n\t") == std::string_view::npos;
    if (is_blank && bytes.size() <= most_blanks) blanks_.push_back(id);
  }
}

int32_t Vocabulary::find(std::string_view bytes) const {
  const auto found = ids_.find(bytes);
  return found == ids_.end() ? -1 : found->second;
}

}  // namespace tandem::grammar
