// Byte alphabet, both directions.
#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace tandem::text {
namespace {

constexpr int kSymbols = 0x100 + 68;  // code points 0..U+0143

constexpr bool is_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

struct Alphabet {
  std::array<char32_t, 256> symbol_of{};
  std::array<int, kSymbols> byte_of{};  // -1: not a symbol

  constexpr Alphabet() {
    for (int& byte : byte_of) byte = -1;
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int symbol = is_itself(byte) ? byte : next++;
      symbol_of[static_cast<std::size_t>(byte)] = static_cast<char32_t>(symbol);
      byte_of[static_cast<std::size_t>(symbol)] = byte;
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

std::string byte_symbol(unsigned char byte) {
  const char32_t symbol = kAlphabet.symbol_of[byte];
  if (symbol < 0x80) return {static_cast<char>(symbol)};
  return {static_cast<char>(0xC0 | symbol >> 6), static_cast<char>(0x80 | (symbol & 0x3F))};
}

std::optional<std::string> bytes_of_symbols(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (std::size_t position = 0; position < spelling.size();) {
    const Utf8Unit unit = utf8_unit(spelling, position);
    if (unit.status != Utf8Status::character || unit.code_point >= kSymbols) return std::nullopt;
    const int byte = kAlphabet.byte_of[unit.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    position += unit.length;
  }
  return bytes;
}

}  // namespace tandem::text
