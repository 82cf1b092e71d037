// The hand-written pre-tokeniser against a real regex engine, PCRE2, running the very expression. Two known differences
// of engines are left out: PCRE2's \s holds U+180E, and its Unicode data may be older or newer than ours.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "text/pretokenizer.h"
#include "text/test_data.h"
#include "text/unicode_class.h"

#ifdef TANDEM_TEST_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace tandem::text::pretokenizer_oracle_test {
namespace {

#ifdef TANDEM_TEST_PCRE2

class Regex {
 public:
  explicit Regex(std::string_view expression) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), PCRE2_UTF | PCRE2_UCP,
                              &error, &offset, nullptr));
    if (!code_) throw std::runtime_error("expression does not compile");
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  // End of the match that begins at `position`; npos if none begins there.
  std::size_t match_end(std::string_view text, std::size_t position) const {
    const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), position,
                                  PCRE2_ANCHORED, match_.get(), nullptr);
    return count > 0 ? pcre2_get_ovector_pointer(match_.get())[1] : std::string_view::npos;
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

void expect_equal_pieces(const Regex& regex, std::string_view text) {
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t end = piece_end(text, position);
    ASSERT_EQ(end, regex.match_end(text, position)) << "at " << position << " of " << nlohmann::json(std::string(text));
    position = end;
  }
}

std::string utf8(char32_t c) {
  std::string text;
  const auto add = [&](char32_t value) { text += static_cast<char>(static_cast<unsigned char>(value)); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xC0 | c >> 6), add(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    add(0xE0 | c >> 12), add(0x80 | (c >> 6 & 0x3F)), add(0x80 | (c & 0x3F));
  } else {
    add(0xF0 | c >> 18), add(0x80 | (c >> 12 & 0x3F)), add(0x80 | (c >> 6 & 0x3F)), add(0x80 | (c & 0x3F));
  }
  return text;
}

TEST(PretokenizerOracle, ClassOfEveryCodePoint) {
  const Regex letter("\\p{L}"), number("\\p{N}"), space("\\s"), unassigned("\\p{Cn}");
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if ((c >= 0xD800 && c <= 0xDFFF) || c == 0x180E) continue;
    const std::string text = utf8(c);
    const auto is = [&](const Regex& regex) { return regex.match_end(text, 0) == text.size(); };
    const CharClass expected = is(letter)   ? CharClass::letter
                               : is(number) ? CharClass::number
                               : is(space)  ? CharClass::space
                                            : CharClass::other;
    if (char_class(c) == expected) continue;
    // Different only where one side's Unicode version does not know the code point yet.
    ASSERT_TRUE(is(unassigned) || char_class(c) == CharClass::other) << std::hex << static_cast<unsigned>(c);
    ASSERT_GT(c, 0x250u) << std::hex << static_cast<unsigned>(c);
  }
}

TEST(PretokenizerOracle, EveryCaseOfTheFile) {
  const Regex regex(kPretokenizerExpression);
  const auto file = read_test_json("tests/text/pretokenizer_cases.json");
  for (const auto& one : file.at("cases")) {
    const std::string name = one.at("name");
    if (name.find("U+180E") != std::string::npos || name.find("Unicode 15") != std::string::npos) continue;
    expect_equal_pieces(regex, one.at("text").get<std::string>());
  }
}

TEST(PretokenizerOracle, RandomTexts) {
  const Regex regex(kPretokenizerExpression);
  const std::vector<std::vector<std::string>> alphabets = {
      // White space against everything, contractions, and a mixture of scripts, marks and symbols.
      {" ", " ", "\n", "\r", "\t", "a", "1", "!", "\u00A0", "\u3000", "\u2028", "\u0085"},
      {"'", "'", "s", "S", "t", "T",      "r",      "e", "R", "E",     "v",
       "m", "l", "L", "d", "D", "\u017F", "\u212A", " ", "x", "\u2019"},
      {"a",
       "Z",
       "\u00E9",
       "e\u0301",
       "\u4F60",
       "\uD55C",
       "\u0939\u093F",
       "1",
       "\u0663",
       "\u2167",
       "\u00BD",
       "!",
       ".",
       "-",
       "_",
       "\u20AC",
       "\U0001F600",
       "\u200D",
       "\uFE0F",
       "\u200B",
       "\uFEFF",
       "\u00AD",
       "\u202E",
       "\uE000",
       " ",
       "  ",
       "\n",
       "\r\n",
       "'",
       std::string(1, '\0'),
       "\x7F",
       "\U00020BB7"},
  };
  std::mt19937 random(11);
  for (const auto& alphabet : alphabets) {
    for (int round = 0; round < 20000; ++round) {
      expect_equal_pieces(regex, random_text(random, alphabet, 1 + random() % 14));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PretokenizerOracle, RandomCodePoints) {
  const Regex regex(kPretokenizerExpression), unassigned("\\p{Cn}");
  std::mt19937 random(13);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    while (text.size() < 40) {
      // All of Unicode, its first scripts, and ASCII, so that neighbours of unlike classes meet.
      const std::uint_fast32_t limits[] = {0x110000, 0x3000, 0x80, 0x80};
      const auto c = static_cast<char32_t>(random() % limits[random() % 4]);
      if ((c >= 0xD800 && c <= 0xDFFF) || c == 0x180E) continue;
      const std::string one = utf8(c);
      if (unassigned.match_end(one, 0) == one.size()) continue;
      text += one;
    }
    expect_equal_pieces(regex, text);
    if (HasFatalFailure()) return;
  }
}

#else

TEST(PretokenizerOracle, NeedsPcre2) {
  GTEST_SKIP() << "built without PCRE2: install libpcre2-dev to run this comparison";
}

#endif

}  // namespace
}  // namespace tandem::text::pretokenizer_oracle_test
