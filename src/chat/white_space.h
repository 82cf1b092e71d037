// What counts as white space around the parts of a reply.
#pragma once

#include <string_view>

namespace tandem::chat {

inline constexpr std::string_view kSpace = " \t\r\n";

inline bool is_blank(std::string_view text) { return text.find_first_not_of(kSpace) == std::string_view::npos; }

// Without white space at either end.
inline std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace tandem::chat
