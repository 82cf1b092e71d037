// Pieces of the strings in tests/text/pretokenizer_cases.json, and inputs that would make a careless scan quadratic.
#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "text/test_data.h"

namespace tandem::text::pretokenizer_test {
namespace {

std::vector<std::string> pieces(std::string_view text) {
  std::vector<std::string> result;
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t end = piece_end(text, position);
    EXPECT_GT(end, position);
    EXPECT_LE(end, text.size());
    result.emplace_back(text.substr(position, end - position));
    position = end;
  }
  return result;
}

std::size_t count_pieces(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t position = 0; position < text.size(); ++count) position = piece_end(text, position);
  return count;
}

TEST(Pretokenizer, EveryCaseOfTheFile) {
  const auto file = read_test_json("tests/text/pretokenizer_cases.json");
  std::set<std::string> names;
  for (const auto& one : file.at("cases")) {
    names.insert(one.at("name"));
    EXPECT_EQ(pieces(one.at("text").get<std::string>()), one.at("pieces").get<std::vector<std::string>>())
        << one.at("name");
  }
  for (int n = 1; n <= 56; ++n) EXPECT_TRUE(names.contains("B.7 #" + std::to_string(n))) << n;
}

// The number of pieces follows from the expression; a scan that looked at a run again for each of its characters would
// take hours.
TEST(Pretokenizer, MegabyteRunsAreLinear) {
  const std::size_t n = 1 << 20;
  for (const char* unit : {"a", " ", "\n", "!", "\xE6\xBC\xA2", "\xCC\x81", "\xE3\x80\x80", " \n", "\r\n", "\t"}) {
    EXPECT_EQ(count_pieces(repeated(unit, n)), 1u) << unit;
  }
  EXPECT_EQ(count_pieces(repeated("1", n)), (n + 2) / 3);
  EXPECT_EQ(count_pieces(repeated("'", n)), 1u);
  EXPECT_EQ(count_pieces(repeated("'s", n)), n);
  EXPECT_EQ(count_pieces(repeated(" ", n) + repeated("x", 1)), 2u);
  EXPECT_EQ(count_pieces(repeated(" ", n) + repeated("1", 1)), 3u);
  EXPECT_EQ(count_pieces(repeated("\n", 1) + repeated(" ", n)), 2u);
  EXPECT_EQ(count_pieces(repeated("\n", 1) + repeated(" ", n) + repeated("x", 1)), 3u);
  EXPECT_EQ(count_pieces(repeated("! ", n)), n + 1);  // "!", " !", ..., " !", " "
  EXPECT_EQ(count_pieces(repeated("  !\n", n)), 2 * n);
  EXPECT_EQ(count_pieces(repeated("\n  a", n)), 3 * n);
}

}  // namespace
}  // namespace tandem::text::pretokenizer_test
