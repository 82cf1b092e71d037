// Literal search for added tokens: leftmost first, then longest (spec/frontend.md B.4).
#include "text/added_tokens.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace tandem::text::added_tokens_test {
namespace {

using Found = std::vector<std::tuple<std::size_t, std::size_t, int32_t>>;

Found find(std::vector<AddedToken> tokens, std::string_view text, std::size_t offset = 0) {
  std::vector<AddedTokenMatcher::Match> matches;
  AddedTokenMatcher(std::move(tokens)).find(text, offset, matches);
  Found found;
  for (const auto& match : matches) found.emplace_back(match.begin, match.end, match.id);
  return found;
}

TEST(AddedTokens, FamilyHas36DifferentContents) {
  const auto family = family_added_tokens();
  EXPECT_EQ(family.size(), 36u);
  EXPECT_EQ(std::set<std::string_view>(family.begin(), family.end()).size(), 36u);
  // Distances from the first that spec/frontend.md B.1 and B.4 state as ids 154820..154855.
  EXPECT_EQ(family[0], "<|endoftext|>");
  EXPECT_EQ(family[154827 - 154820], "<|user|>");
  EXPECT_EQ(family[154829 - 154820], "<|observation|>");
  EXPECT_EQ(family[154841 - 154820], "<think>");
  EXPECT_EQ(family[154851 - 154820], "/nothink");
  EXPECT_EQ(family[154855 - 154820], "<|video|>");
}

TEST(AddedTokens, LeftmostThenLongest) {
  const std::vector<AddedToken> tokens = {
      {1, "<a>", false}, {2, "<a><b>", false}, {3, "a><b>x", false}, {4, "<", false}};
  EXPECT_EQ(find(tokens, "<a>"), (Found{{0, 3, 1}}));
  EXPECT_EQ(find(tokens, "<a><b>x"), (Found{{0, 6, 2}}));  // longest of those at 0
  EXPECT_EQ(find(tokens, "a><b>x<a>"), (Found{{0, 6, 3}, {6, 9, 1}}));
  EXPECT_EQ(find(tokens, "<<a>"), (Found{{0, 1, 4}, {1, 4, 1}}));  // no look-back after a match
  EXPECT_EQ(find(tokens, "xyz"), Found{});
  EXPECT_EQ(find(tokens, ""), Found{});
}

TEST(AddedTokens, MatchesDoNotOverlapAndCarryTheOffset) {
  const std::vector<AddedToken> tokens = {{7, "aa", false}, {8, "\xC3\xA9", false}};
  EXPECT_EQ(find(tokens, "aaaaa\xC3\xA9", 10), (Found{{10, 12, 7}, {12, 14, 7}, {15, 17, 8}}));
}

TEST(AddedTokens, TextThatEndsInsideAContentIsNoMatch) {
  EXPECT_EQ(find({{1, "<think>", false}}, "<thin"), Found{});
  EXPECT_EQ(find({{1, "<think>", false}}, "<think <Think>"), Found{});
}

}  // namespace
}  // namespace tandem::text::added_tokens_test
