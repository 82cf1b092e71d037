// Decoding of UTF-8 that says exactly what is wrong with bad bytes. Shared by the pre-tokeniser, the check of the input
// and the streaming decoder.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Status {
  character,   // `length` bytes are `code_point`
  invalid,     // `length` bytes are a maximal subpart that no continuation can make valid
  incomplete,  // the text ends inside a character that further bytes could still complete
};

struct Utf8Unit {
  char32_t code_point;  // 0 unless a character
  std::size_t length;   // 1..4; 1..3 when invalid or incomplete
  Utf8Status status;
};

// The unit that starts at byte `position` < text.size(). Well-formed sequences and maximal subparts as in the Unicode
// Standard 15.0, section 3.9, table 3-7: no surrogates, no overlong forms, nothing above U+10FFFF.
Utf8Unit utf8_unit(std::string_view text, std::size_t position);

// Byte position of the first thing that is not a complete character; empty when `text` is valid UTF-8.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

// Appends `text` with U+FFFD in place of each invalid maximal subpart and returns the number of bytes consumed: all but
// an incomplete end, which is left to the caller.
std::size_t append_valid_utf8(std::string_view text, std::string& out);

}  // namespace tandem::text
