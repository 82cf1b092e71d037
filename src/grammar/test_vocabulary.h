// A small byte-level vocabulary for tests: every byte, some longer tokens, and added tokens that have no bytes.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/vocabulary.h"

namespace tandem::grammar {

inline constexpr int32_t test_added = 256;  // ids 256 to 271 are added tokens

inline std::shared_ptr<const Vocabulary> test_vocabulary() {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  bytes.resize(bytes.size() + 16);
  for (const char* text : {"{\"",  "\":",     "\",", "\"}", "true", "false", "null", "  ",   "\n  ", "name",
                           "get_", "weather", "abc", "12",  "345",  "ä",     "中文", "[1, ", "}}",   "\xE4\xB8"})
    bytes.emplace_back(text);
  return std::make_shared<const Vocabulary>(std::move(bytes));
}

// The tokens of a text: the longest that fits, from the left.
inline std::vector<int32_t> test_tokens(const Vocabulary& vocabulary, std::string_view text) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    size_t size = std::min<size_t>(text.size(), 16);
    while (vocabulary.find(text.substr(0, size)) < 0) --size;
    ids.push_back(vocabulary.find(text.substr(0, size)));
    text.remove_prefix(size);
  }
  return ids;
}

}  // namespace tandem::grammar
