// Which of the four classes of the pre-tokeniser's expression (spec/frontend.md B.2) a code point belongs to. A table
// of our own because the C++ library knows no Unicode categories and a regex engine would be a dependency for one
// expression.
#pragma once

#include <cstdint>

namespace tandem::text {

// \p{L} (Lu Ll Lt Lm Lo), \p{N} (Nd Nl No), White_Space, and all else: marks, punctuation, symbols, unassigned.
enum class CharClass : std::uint8_t { other, letter, number, space };

// `code_point` up to U+10FFFF; anything larger is `other`.
CharClass char_class(char32_t code_point);

// Version of the Unicode data behind char_class, such as "15.0.0".
const char* unicode_version();

}  // namespace tandem::text
