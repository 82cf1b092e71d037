// Byte-pair encoding against the definition, written out slowly: apply the lowest-ranked merge, leftmost first, until
// none applies. Short and long pieces take different code, so both sides of the border are tried.
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "text/test_data.h"

namespace tandem::text::bpe_test {
namespace {

std::array<int32_t, 256> identity() {
  std::array<int32_t, 256> ids;
  for (int32_t i = 0; i < 256; ++i) ids[static_cast<std::size_t>(i)] = i;
  return ids;
}

std::vector<int32_t> by_definition(const std::vector<Merge>& merges, std::string_view piece) {
  std::map<std::pair<int32_t, int32_t>, std::pair<std::size_t, int32_t>> table;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    table[{merges[rank].left, merges[rank].right}] = {rank, merges[rank].result};
  }
  std::vector<int32_t> ids;
  for (const char c : piece) ids.push_back(static_cast<unsigned char>(c));
  while (true) {
    std::size_t best = ids.size();
    std::pair<std::size_t, int32_t> merge{merges.size(), 0};
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = table.find({ids[i], ids[i + 1]});
      if (found != table.end() && found->second.first < merge.first) best = i, merge = found->second;
    }
    if (best == ids.size()) return ids;
    ids[best] = merge.second;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

std::vector<int32_t> encode(const Bpe& bpe, std::string_view piece) {
  std::vector<int32_t> ids = {-7};  // encode appends
  bpe.encode(piece, ids);
  EXPECT_EQ(ids.front(), -7);
  ids.erase(ids.begin());
  return ids;
}

TEST(Bpe, RandomMergeTablesAgreeWithTheDefinition) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<Merge> merges;
    const int32_t letters = 2 + static_cast<int32_t>(random() % 3);
    for (int32_t i = 0; i < 40; ++i) {
      const auto symbol = [&] {
        const auto pick = static_cast<int32_t>(random() % static_cast<unsigned>(letters + i));
        return pick < letters ? 'a' + pick : 256 + pick - letters;
      };
      merges.push_back({symbol(), symbol(), 256 + i});
    }
    const Bpe bpe(identity(), merges, {}, false);
    for (const std::size_t length : {1, 2, 3, 7, 20, 47, 48, 49, 50, 200}) {
      std::string piece;
      for (std::size_t i = 0; i < length; ++i)
        piece += static_cast<char>('a' + random() % static_cast<unsigned>(letters));
      ASSERT_EQ(encode(bpe, piece), by_definition(merges, piece)) << "round " << round << ", " << piece;
    }
  }
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  const std::vector<Merge> merges = {{'b', 'c', 256}, {'a', 'b', 257}, {'a', 'a', 258}};
  const Bpe bpe(identity(), merges, {}, false);
  EXPECT_EQ(encode(bpe, "abc"), (std::vector<int32_t>{'a', 256}));
  EXPECT_EQ(encode(bpe, "aaa"), (std::vector<int32_t>{258, 'a'}));
  EXPECT_EQ(encode(bpe, "xyz"), (std::vector<int32_t>{'x', 'y', 'z'}));
  EXPECT_EQ(encode(bpe, ""), std::vector<int32_t>{});
}

TEST(Bpe, ARepeatedPairCountsWithItsLaterRank) {
  const std::vector<Merge> merges = {{'a', 'b', 256}, {'b', 'c', 257}, {'a', 'b', 258}};
  EXPECT_EQ(encode(Bpe(identity(), merges, {}, false), "abc"), (std::vector<int32_t>{'a', 257}));
}

TEST(Bpe, IgnoreMergesTakesAWholePieceThatMergesCannotReach) {
  const std::vector<Merge> merges = {{'a', 'b', 256}};
  const TokenMap tokens = {{"ab", 256}, {"abc", 300}, {"abcd", 301}};
  const Bpe merging(identity(), merges, tokens, false), looking_up(identity(), merges, tokens, true);
  EXPECT_EQ(encode(merging, "abc"), (std::vector<int32_t>{256, 'c'}));
  EXPECT_EQ(encode(looking_up, "abc"), (std::vector<int32_t>{300}));
  EXPECT_EQ(encode(looking_up, "abcde"), (std::vector<int32_t>{256, 'c', 'd', 'e'}));
  EXPECT_EQ(encode(merging, "ab"), encode(looking_up, "ab"));
}

TEST(Bpe, AMegabyteOfOneByteDoublesUp) {
  // a+a, aa+aa, ...: 2^20 bytes become 2^20 / 2^10 symbols. A quadratic merge would not come back.
  std::vector<Merge> merges = {{'a', 'a', 256}};
  for (int32_t i = 1; i < 10; ++i) merges.push_back({255 + i, 255 + i, 256 + i});
  const Bpe bpe(identity(), merges, {}, false);
  EXPECT_EQ(encode(bpe, repeated("a", 1 << 20)), std::vector<int32_t>(1 << 10, 265));
  EXPECT_EQ(encode(bpe, repeated("b", 1 << 20)), std::vector<int32_t>(1 << 20, 'b'));
}

}  // namespace
}  // namespace tandem::text::bpe_test
