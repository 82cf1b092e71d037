// The byte alphabet of byte-level BPE (spec/frontend.md B.3): tokenizer.json spells every byte as one printable
// character. Only the loader sees that spelling; everything after it works on raw bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::text {

// The character that stands for `byte`: bytes 33-126, 161-172 and 174-255 are the code point of the same value, the
// other 68 are U+0100, U+0101, ... in increasing order.
std::string byte_symbol(unsigned char byte);

// The bytes that a spelling stands for; empty if it holds a character outside the alphabet. `spelling` is valid UTF-8.
std::optional<std::string> bytes_of_symbols(std::string_view spelling);

}  // namespace tandem::text
