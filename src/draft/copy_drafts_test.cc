// Prompt lookup against a scan of the whole window (spec/speculation.md 5.4).
#include "draft/copy_drafts.h"

#include <random>

#include "base/error.h"

namespace tandem::draft::copy_drafts_test {
namespace {

using Match = CopyIndex::Match;

// The rule, word by word and slowly.
Match scanned(const CopyOptions& options, const std::vector<int32_t>& ids, int64_t prompt, int32_t wanted) {
  const auto size = static_cast<int64_t>(ids.size());
  const int64_t oldest = std::max<int64_t>(0, size - options.window);
  Match best;
  for (int64_t last = size - 2; last >= oldest; --last) {
    const int32_t needed = last < prompt ? options.match : std::max(options.match, options.reply_match);
    if (last - needed + 1 < oldest) continue;
    int32_t equal = 0;
    while (equal < 64 && last - equal >= 0 &&
           ids[static_cast<size_t>(last - equal)] == ids[static_cast<size_t>(size - 1 - equal)])
      ++equal;
    if (equal < needed) continue;
    const int64_t following = size - 1 - last;
    if (following > best.tokens)
      best = {.next = last + 1, .tokens = static_cast<int32_t>(std::min<int64_t>(following, wanted)), .equal = equal};
    if (following >= wanted) return best;
  }
  return best;
}

void expect_same(const CopyOptions& options, const CopyIndex& index, const std::vector<int32_t>& ids, int64_t prompt,
                 int32_t wanted) {
  const Match found = index.find(ids, prompt, wanted), right = scanned(options, ids, prompt, wanted);
  ASSERT_EQ(found.tokens, right.tokens) << ids.size() << " ids, prompt " << prompt << ", wanted " << wanted;
  ASSERT_EQ(found.next, right.next) << ids.size() << " ids, prompt " << prompt << ", wanted " << wanted;
  ASSERT_EQ(found.equal, right.equal);
}

// Random tokens with pieces of earlier text, single tokens and short periods among them.
std::vector<int32_t> text_of(uint32_t seed, size_t size, uint32_t vocabulary) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids;
  while (ids.size() < size) {
    const uint32_t kind = random() % 4;
    const size_t length = 1 + random() % 40;
    if (kind == 0 || ids.empty()) {
      for (size_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>(random() % vocabulary));
    } else if (kind == 1) {
      ids.insert(ids.end(), length, static_cast<int32_t>(random() % vocabulary));
    } else {
      const size_t back = kind == 2 ? 1 + random() % std::min<size_t>(ids.size(), 5) : 1 + random() % ids.size();
      for (size_t i = 0; i < length; ++i) ids.push_back(ids[ids.size() - back]);
    }
  }
  ids.resize(size);
  return ids;
}

class Copies : public ::testing::TestWithParam<CopyOptions> {};

TEST_P(Copies, EqualTheScanOnEveryPrefix) {
  const CopyOptions& options = GetParam();
  CopyIndex index(options);
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    const std::vector<int32_t> whole = text_of(seed, 700, seed % 3 == 0 ? 3 : 60);
    std::mt19937 random(seed);
    const auto prompt = static_cast<int64_t>(random() % 500);
    index.reset();
    for (size_t size = 1 + random() % 40; size < whole.size(); size += 1 + random() % 5) {
      const std::vector<int32_t> ids(whole.begin(), whole.begin() + static_cast<int64_t>(size));
      index.update(ids);
      ASSERT_NO_FATAL_FAILURE(expect_same(options, index, ids, prompt, static_cast<int32_t>(1 + random() % 15)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Options, Copies,
                         ::testing::Values(CopyOptions{.most_places = 1 << 20},
                                           CopyOptions{.match = 2, .reply_match = 2, .most_places = 1 << 20},
                                           CopyOptions{.match = 3, .window = 64, .most_places = 1 << 20},
                                           CopyOptions{.match = 64, .window = 256, .most_places = 1 << 20},
                                           CopyOptions{.match = 2, .reply_match = 16, .window = 16}));

TEST(Copy, TakesTheLatestPlaceThatHasEnoughToFollow) {
  // A match at 0, 20 and 40 of a stream that ends with its first 8 tokens.
  std::vector<int32_t> ids;
  for (int part = 0; part < 3; ++part) {
    for (int32_t i = 0; i < 8; ++i) ids.push_back(i);
    for (int32_t i = 0; i < 12; ++i) ids.push_back(100 * (part + 1) + i);
  }
  for (int32_t i = 0; i < 8; ++i) ids.push_back(i);
  CopyIndex index;
  index.update(ids);
  const auto prompt = static_cast<int64_t>(ids.size());
  EXPECT_EQ(index.find(ids, prompt, 15).next, 48);  // 20 tokens follow
  EXPECT_EQ(index.find(ids, prompt, 15).tokens, 15);
  Proposal proposal;
  index.propose(ids, prompt, 13, proposal);
  EXPECT_EQ(proposal.source, Source::copy);
  ASSERT_EQ(proposal.count, 13);
  EXPECT_EQ(proposal.tokens[0], 300);
  EXPECT_EQ(proposal.tokens[12], 0);
  EXPECT_GT(proposal.confidence[0], 0.5);
  EXPECT_LT(proposal.confidence[0], 1);
  EXPECT_EQ(index.find(ids, 8, 15).next, 8);  // in the reply 16 tokens must match
  EXPECT_EQ(index.find(ids, 0, 15).tokens, 0);
}

TEST(Copy, ARepeatedTokenProposesItself) {
  std::vector<int32_t> ids(40, 7);
  CopyIndex index;
  index.update(ids);
  const Match match = index.find(ids, 40, 15);
  EXPECT_EQ(match.next, 25);
  EXPECT_EQ(match.tokens, 15);
  ids.resize(10);  // one place, one token before the end
  index.reset();
  index.update(ids);
  EXPECT_EQ(index.find(ids, 10, 15).tokens, 2);
  ids.resize(8);
  index.reset();
  index.update(ids);
  EXPECT_EQ(index.find(ids, 8, 15).tokens, 0);
}

TEST(Copy, SearchesTheLast65536Tokens) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 65536 + 200; ++i) ids.push_back(i);
  const CopyOptions options;
  CopyIndex at_once, grown;
  for (const int64_t start : {192, 199, 200, 201, 207, 208, 300, 65000}) {
    std::vector<int32_t> all = ids;
    for (int64_t i = start; i < start + 8; ++i) all.push_back(static_cast<int32_t>(i));
    at_once.reset();
    at_once.update(all);
    grown.reset();
    for (const size_t size : {size_t{5}, size_t{300}, size_t{65600}, all.size() - 1, all.size()})
      grown.update(std::span(all).first(size));
    const auto prompt = static_cast<int64_t>(ids.size());
    ASSERT_NO_FATAL_FAILURE(expect_same(options, at_once, all, prompt, 15));
    ASSERT_NO_FATAL_FAILURE(expect_same(options, grown, all, prompt, 15));
    EXPECT_EQ(at_once.find(all, prompt, 15).tokens, start >= 208 ? 15 : 0) << start;  // 65,536 + 208 ids
  }
}

TEST(Copy, LooksAtABoundedNumberOfPlaces) {
  // Every place but the first is of the reply and matches 8 tokens of the 16 that it would need.
  std::vector<int32_t> ids;
  for (int32_t part = 0; part < 50; ++part) {
    for (int32_t i = 0; i < 8; ++i) ids.push_back(i);
    ids.push_back(100 + part);
  }
  for (int32_t i = 0; i < 8; ++i) ids.push_back(i);
  CopyIndex few({.most_places = 10}), many({.most_places = 50});
  few.update(ids);
  many.update(ids);
  EXPECT_EQ(few.find(ids, 9, 15).tokens, 0);
  EXPECT_EQ(many.find(ids, 9, 15).next, 8);
}

TEST(Copy, RefusesWhatCannotBe) {
  for (const CopyOptions& options :
       {CopyOptions{.match = 1}, CopyOptions{.match = 65}, CopyOptions{.reply_match = 1}, CopyOptions{.window = 1000},
        CopyOptions{.window = 0}, CopyOptions{.most_places = 0}}) {
    try {
      CopyIndex index(options);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
    }
  }
  CopyIndex index;
  const std::vector<int32_t> ids(20, 1);
  index.update(ids);
  EXPECT_THROW(index.update(std::span(ids).first(19)), Error);  // streams only grow
  EXPECT_THROW(index.find(std::span(ids).first(19), 0, 1), Error);
}

}  // namespace
}  // namespace tandem::draft::copy_drafts_test
