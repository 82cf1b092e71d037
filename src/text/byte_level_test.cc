// The byte alphabet of spec/frontend.md B.3.
#include "text/byte_level.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tandem::text::byte_level_test {
namespace {

TEST(ByteLevel, KnownSymbols) {
  EXPECT_EQ(byte_symbol('!'), "!");
  EXPECT_EQ(byte_symbol('~'), "~");
  EXPECT_EQ(byte_symbol(161), "\u00A1");
  EXPECT_EQ(byte_symbol(255), "\u00FF");
  EXPECT_EQ(byte_symbol(0), "\u0100");  // the first of the 68
  EXPECT_EQ(byte_symbol('\n'), "\u010A");
  EXPECT_EQ(byte_symbol(' '), "\u0120");
  EXPECT_EQ(byte_symbol(127), "\u0121");  // after 0..32
  EXPECT_EQ(byte_symbol(160), "\u0142");  // after 127..159
  EXPECT_EQ(byte_symbol(173), "\u0143");  // the last
}

TEST(ByteLevel, AllBytesThereAndBack) {
  std::set<std::string> symbols;
  std::string spelling, bytes;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string symbol = byte_symbol(static_cast<unsigned char>(byte));
    symbols.insert(symbol);
    spelling += symbol;
    bytes += static_cast<char>(byte);
  }
  EXPECT_EQ(symbols.size(), 256u);
  EXPECT_EQ(bytes_of_symbols(spelling), bytes);
}

TEST(ByteLevel, OtherCharactersAreRefused) {
  for (const char* text : {" ", "a b", "\n", "\x7F", "\u00A0", "\u00AD", "\u0144", "漢", "😀", "\xC3"}) {
    EXPECT_FALSE(bytes_of_symbols(text)) << text;
  }
  EXPECT_EQ(bytes_of_symbols(""), "");
}

}  // namespace
}  // namespace tandem::text::byte_level_test
