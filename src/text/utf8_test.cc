// UTF-8: every character, everything that is none, and the streaming decoder at every split of its input.
#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tandem::text::utf8_test {
namespace {

std::string encode(char32_t c) {
  const auto byte = [](char32_t value) { return static_cast<char>(static_cast<unsigned char>(value)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 0x3F))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 0x3F)), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
}

// Bad bytes and what they must become: one U+FFFD ("?") for each maximal subpart (Unicode 15.0, table 3-8 and D93b).
struct Bad {
  std::string bytes, expected;
};
std::vector<Bad> bad_texts() {
  return {
      {"\xC3\x28", "?("},            // lead byte without its continuation
      {"\xED\xA0\x80", "???"},       // surrogate
      {"\xF4\x90\x80\x80", "????"},  // beyond U+10FFFF
      {"\xC0\xAF", "??"},            // overlong
      {"\xE0\x80\xAF", "???"},       // overlong
      {"\xF0\x80\x80\xAF", "????"},  // overlong
      {"\x80", "?"},                 // stray continuation
      {"\xFF\xFE", "??"},            // never in UTF-8
      {"\xF0\x9F\x98", "?"},         // cut at the end
      {"a\xF1\x80\x80\xE1\x80\xC2"
       "b\x80"
       "c\x80\xBF"
       "d",
       "a???b?c??d"},                             // the Standard's example
      {"\xE2\x82\xE2\x82\xAC", "?\xE2\x82\xAC"},  // cut by the next character
      {"x\xE2", "x?"},
  };
}

std::string with_replacements(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '?' ? std::string(kReplacement) : std::string(1, c);
  return out;
}

std::string stream(const std::vector<std::string>& chunks) {
  Utf8Stream decoder;
  std::string out;
  for (const std::string& chunk : chunks) {
    const std::string text = decoder.push(chunk);
    EXPECT_FALSE(first_invalid_utf8(text)) << "a push returned an incomplete character";
    out += text;
  }
  return out + decoder.finish();
}

TEST(Utf8, EveryCodePointDecodesAndSurrogatesDoNot) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    const std::string bytes = encode(c);
    const Utf8Unit unit = utf8_unit(bytes, 0);
    if (c >= 0xD800 && c <= 0xDFFF) {
      ASSERT_EQ(unit.status, Utf8Status::invalid) << static_cast<unsigned>(c);
      ASSERT_EQ(unit.length, 1u);
      continue;
    }
    ASSERT_EQ(unit.status, Utf8Status::character) << static_cast<unsigned>(c);
    ASSERT_EQ(unit.code_point, c);
    ASSERT_EQ(unit.length, bytes.size());
    for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
      const Utf8Unit part = utf8_unit(std::string_view(bytes).substr(0, cut), 0);
      ASSERT_EQ(part.status, Utf8Status::incomplete) << static_cast<unsigned>(c);
      ASSERT_EQ(part.length, cut);
    }
  }
}

TEST(Utf8, FirstInvalidNamesThePosition) {
  EXPECT_FALSE(first_invalid_utf8(""));
  EXPECT_FALSE(first_invalid_utf8("aé漢😀"));
  EXPECT_EQ(first_invalid_utf8("ab\xC3\x28"), 2u);
  EXPECT_EQ(first_invalid_utf8("é\xE2\x82"), 2u);
  for (const Bad& bad : bad_texts()) EXPECT_TRUE(first_invalid_utf8(bad.bytes)) << bad.expected;
}

TEST(Utf8, OneReplacementForEachMaximalSubpartAtEverySplit) {
  for (const Bad& bad : bad_texts()) {
    const std::string expected = with_replacements(bad.expected);
    EXPECT_EQ(stream({bad.bytes}), expected);
    for (std::size_t a = 0; a <= bad.bytes.size(); ++a) {
      for (std::size_t b = a; b <= bad.bytes.size(); ++b) {
        EXPECT_EQ(stream({bad.bytes.substr(0, a), bad.bytes.substr(a, b - a), bad.bytes.substr(b)}), expected)
            << "split at " << a << " and " << b;
      }
    }
  }
}

TEST(Utf8, StreamNeverHoldsACompleteCharacterBack) {
  const std::string text = "aé漢😀z";
  Utf8Stream decoder;
  std::string out;
  std::size_t pushed = 0;
  for (const char byte : text) {
    out += decoder.push(std::string(1, byte));
    ++pushed;
    std::size_t complete = 0;  // end of the last character that has arrived whole
    while (complete < pushed) {
      const std::size_t next = complete + utf8_unit(text, complete).length;
      if (next > pushed) break;
      complete = next;
    }
    EXPECT_EQ(out, text.substr(0, complete));
  }
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(out, text);
}

TEST(Utf8, FinishFlushesOnceAndLeavesTheStreamReady) {
  Utf8Stream decoder;
  EXPECT_EQ(decoder.push("\xF0\x9F"), "");
  EXPECT_EQ(decoder.finish(), kReplacement);
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push("ok"), "ok");
}

}  // namespace
}  // namespace tandem::text::utf8_test
