// The generated table against totals that the Unicode Character Database itself states, and against single facts of
// spec/frontend.md B.2.
#include "text/unicode_class.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace tandem::text::unicode_class_test {
namespace {

TEST(UnicodeClass, TotalsOfUnicode15) {
  std::array<int, 4> total{};
  for (char32_t c = 0; c <= 0x10FFFF; ++c) ++total[static_cast<std::size_t>(char_class(c))];
  EXPECT_STREQ(unicode_version(), "15.0.0");
  // DerivedGeneralCategory-15.0.0.txt, "Total code points": Lu, Ll, Lt, Lm, Lo; Nd, Nl, No. White_Space has 25.
  EXPECT_EQ(total[static_cast<std::size_t>(CharClass::letter)], 1831 + 2233 + 31 + 397 + 131612);
  EXPECT_EQ(total[static_cast<std::size_t>(CharClass::number)], 680 + 236 + 915);
  EXPECT_EQ(total[static_cast<std::size_t>(CharClass::space)], 25);
}

TEST(UnicodeClass, WhiteSpaceIsExactlyTheSpecsList) {
  std::vector<char32_t> expected = {0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x20, 0x85, 0xA0, 0x1680};
  for (char32_t c = 0x2000; c <= 0x200A; ++c) expected.push_back(c);
  expected.insert(expected.end(), {0x2028, 0x2029, 0x202F, 0x205F, 0x3000});
  std::vector<char32_t> found;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (char_class(c) == CharClass::space) found.push_back(c);
  }
  EXPECT_EQ(found, expected);
}

TEST(UnicodeClass, EveryCategoryOfLettersAndNumbersMarksAreNeither) {
  for (const char32_t letter :
       {U'A', U'z', U'ǅ', U'ʰ', U'ª', U'漢', U'한', U'\U00020BB7', U'\U000323AF', U'\U00011F04'}) {
    EXPECT_EQ(char_class(letter), CharClass::letter) << std::hex << static_cast<unsigned>(letter);
  }
  for (const char32_t number : {U'0', U'٣', U'Ⅷ', U'½', U'²', U'〇', U'\U00011F50'}) {
    EXPECT_EQ(char_class(number), CharClass::number) << std::hex << static_cast<unsigned>(number);
  }
  // Marks, spaces that are none, punctuation, symbols, controls, private use, unassigned, the last code point.
  for (const char32_t other : {0x0301, 0x093E, 0x200B, 0x2060, 0xFEFF, 0x180E, 0x200D, 0x27, 0x20AC, 0x1F600, 0x00,
                               0x1F, 0x7F, 0xE000, 0x0378, 0x10FFFF}) {
    EXPECT_EQ(char_class(other), CharClass::other) << std::hex << static_cast<unsigned>(other);
  }
  EXPECT_EQ(char_class(0x110000), CharClass::other);
  EXPECT_EQ(char_class(0xFFFFFFFF), CharClass::other);
}

}  // namespace
}  // namespace tandem::text::unicode_class_test
