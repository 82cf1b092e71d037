// Stop strings against a plain search, however the text is cut.
#include "chat/stop_strings.h"

#include <random>

#include "base/error.h"

namespace tandem::chat::stop_strings_test {
namespace {

using Kind = ReplyPiece::Kind;

std::string text_of(const std::vector<ReplyPiece>& pieces) {
  std::string out;
  for (const ReplyPiece& piece : pieces) {
    EXPECT_FALSE(piece.text.empty());
    out += piece.text;
  }
  return out;
}

std::string push(StopStrings& stops, const char* text, Kind kind = Kind::content) {
  return text_of(stops.push({{kind, text}}));
}

TEST(StopStrings, HoldsBackTheLongestSuffixThatCouldBecomeAStop) {
  StopStrings stops({"END", "\n\nUser:"});
  EXPECT_EQ(push(stops, "abc E"), "abc ");
  EXPECT_EQ(push(stops, "N"), "");
  EXPECT_EQ(push(stops, "E"), "EN");
  EXPECT_EQ(push(stops, "x\n"), "Ex");
  EXPECT_EQ(push(stops, "\n"), "");
  EXPECT_EQ(push(stops, "\n"), "\n");
  EXPECT_EQ(text_of(stops.finish()), "\n\n");
  EXPECT_FALSE(stops.matched());
}

TEST(StopStrings, CutsBeforeAMatchAcrossPieces) {
  StopStrings stops({"x", "STOP"});
  EXPECT_EQ(push(stops, "one S"), "one ");
  EXPECT_EQ(push(stops, "TO"), "");
  EXPECT_EQ(push(stops, "P two"), "");
  EXPECT_EQ(stops.matched(), 1U);
  EXPECT_EQ(push(stops, "more"), "");
  EXPECT_EQ(text_of(stops.finish()), "");
}

TEST(StopStrings, MayKeepTheStopString) {
  StopStrings stops({"STOP"}, true);
  EXPECT_EQ(push(stops, "one ST"), "one ");
  EXPECT_EQ(push(stops, "OP two"), "STOP");
  EXPECT_EQ(stops.matched(), 0U);
}

TEST(StopStrings, FirstCompleteMatchWinsThenTheLongest) {
  StopStrings inner({"abcd", "bc"});
  EXPECT_EQ(push(inner, "xabcd"), "xa");
  EXPECT_EQ(inner.matched(), 1U);
  StopStrings same_end({"bc", "abc", "c"});
  EXPECT_EQ(push(same_end, "xabc"), "x");
  EXPECT_EQ(same_end.matched(), 1U);
}

TEST(StopStrings, RepeatedPrefixesAreFollowed) {
  StopStrings stops({"aab"});
  EXPECT_EQ(push(stops, "aaa"), "a");
  EXPECT_EQ(push(stops, "b"), "");
  EXPECT_EQ(stops.matched(), 0U);
}

TEST(StopStrings, ReasoningIsLeftAloneByDefault) {
  StopStrings stops({"END"});
  EXPECT_EQ(push(stops, "the END", Kind::reasoning), "the END");
  EXPECT_FALSE(stops.matched());
  EXPECT_EQ(push(stops, "the END"), "the ");
  StopStrings raw({"END"}, false, true);
  EXPECT_EQ(push(raw, "the EN", Kind::reasoning), "the ");
  EXPECT_EQ(push(raw, "D", Kind::reasoning), "");
  EXPECT_EQ(raw.matched(), 0U);
}

TEST(StopStrings, NoMatchAcrossAChangeOfKind) {
  StopStrings stops({"END"}, false, true);
  EXPECT_EQ(push(stops, "EN", Kind::reasoning), "");
  const std::vector<ReplyPiece> out = stops.push({{Kind::content, "D"}});
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[0].kind, Kind::reasoning);
  EXPECT_EQ(out[0].text, "EN");
  EXPECT_EQ(out[1].text, "D");
}

TEST(StopStrings, WithoutStringsEverythingPasses) {
  StopStrings stops({});
  EXPECT_EQ(push(stops, "abc"), "abc");
  EXPECT_TRUE(stops.finish().empty());
}

TEST(StopStrings, EmptyStringsAreRefused) {
  try {
    StopStrings stops({"a", ""});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), "stop[1]");
  }
}

// Against the definition, on random texts over a small alphabet, cut at random places.
TEST(StopStrings, AgreesWithASearchHoweverTheTextIsCut) {
  std::mt19937 random(7);
  const auto word = [&random](std::size_t longest, std::size_t shortest) {
    std::string out(shortest + random() % (longest - shortest + 1), 'a');
    for (char& c : out) c = static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> strings(1 + random() % 3);
    for (std::string& string : strings) string = word(5, 2);
    const std::string text = word(14, 1);

    std::string expected = text;
    std::optional<std::size_t> expected_match;
    for (std::size_t end = 1; end <= text.size() && !expected_match; ++end) {
      for (std::size_t i = 0; i < strings.size(); ++i) {
        if (!std::string_view(text).substr(0, end).ends_with(strings[i])) continue;
        if (!expected_match || strings[i].size() > strings[*expected_match].size()) expected_match = i;
      }
      if (expected_match) expected = text.substr(0, end - strings[*expected_match].size());
    }

    StopStrings stops(strings);
    std::string shown;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = 1 + random() % 4;
      shown += text_of(stops.push({{Kind::content, text.substr(at, n)}}));
      at += n;
      // Never more held back than a proper prefix of a stop string needs.
      if (stops.matched() || at >= text.size()) continue;
      std::size_t longest = 0;
      for (const std::string& string : strings) {
        for (std::size_t k = 1; k < string.size() && k <= at; ++k) {
          if (text.substr(at - k, k) == string.substr(0, k)) longest = std::max(longest, k);
        }
      }
      ASSERT_EQ(shown.size(), at - longest) << text << " at " << at;
    }
    shown += text_of(stops.finish());
    ASSERT_EQ(shown, expected) << text;
    ASSERT_EQ(stops.matched().has_value(), expected_match.has_value());
    if (expected_match) {
      ASSERT_EQ(strings[*stops.matched()], strings[*expected_match]);
    }
  }
}

}  // namespace
}  // namespace tandem::chat::stop_strings_test
