// The allocation of verified rows (spec/speculation.md 5.1, 5.2), names and tables.
#include "draft/policy.h"

#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"

namespace tandem::draft::policy_test {
namespace {

Proposal proposal_of(Source source, std::vector<double> confidence) {
  Proposal proposal;
  proposal.source = source;
  proposal.count = static_cast<int32_t>(confidence.size());
  std::copy(confidence.begin(), confidence.end(), proposal.confidence.begin());
  return proposal;
}

std::vector<int32_t> allocated(const Policy& policy, const TimingTable& table, const std::vector<Proposal>& proposals,
                               int64_t other_rows = 0, int32_t most = most_drafts) {
  std::vector<Wish> wishes;
  for (const Proposal& proposal : proposals) wishes.push_back({&proposal, std::min(most, proposal.count)});
  std::vector<int32_t> take(wishes.size(), -1);
  allocate(policy, table, wishes, other_rows, take);
  return take;
}

TimingTable table_of(std::vector<double> verify_ms, double overhead = 0) {
  TimingTable table;
  table.verify_ms = std::move(verify_ms);
  table.overhead_ms = overhead;
  return table;
}

std::string refusal(std::string_view text) {
  try {
    parse_policy(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.what();
  }
  return "";
}

TEST(Policy, IsReadAndPrinted) {
  for (const char* text : {"fixed", "joint", "confidence:0.3", "confidence:0", "confidence:1"})
    EXPECT_EQ(text_of(parse_policy(text)), text);
  EXPECT_EQ(text_of(parse_policy("confidence")), "confidence:0.3");
  EXPECT_EQ(text_of(Policy{}), "joint");
  for (const char* text : {"", "Joint", "confidence:", "confidence:1.5", "confidence:-1", "confidence:nan",
                           "confidence:0.3x", "confidences", "fixed:3"})
    EXPECT_NE(refusal(text).find("--draft-policy"), std::string::npos) << text;
}

TEST(Policy, FixedTakesAllUpToTheDepth) {
  const Policy fixed{.kind = Policy::Kind::fixed, .depth = 2};
  const std::vector<double> sure(5, 0.01);
  EXPECT_EQ(
      allocated(fixed, table_of({1, 9}),
                {proposal_of(Source::dflash2, sure), proposal_of(Source::copy, sure), proposal_of(Source::mtp, {})}),
      (std::vector<int32_t>{2, 2, 0}));
  EXPECT_EQ(allocated({.kind = Policy::Kind::fixed}, table_of({1}), {proposal_of(Source::mtp, sure)}, 0, 3),
            (std::vector<int32_t>{3}));
}

TEST(Policy, RowsAreTrimmedFromTheLongestWindowTheLatestOfEquals) {
  const std::vector<double> five(5, 1.0), three(3, 1.0);
  const std::vector<Proposal> proposals = {proposal_of(Source::mtp, five), proposal_of(Source::mtp, three),
                                           proposal_of(Source::mtp, five)};
  const auto take = [&](int32_t rows) {
    return allocated({.kind = Policy::Kind::fixed, .most_rows = rows}, table_of({1}), proposals, 2);
  };
  EXPECT_EQ(take(18), (std::vector<int32_t>{5, 3, 5}));
  EXPECT_EQ(take(17), (std::vector<int32_t>{5, 3, 4}));
  EXPECT_EQ(take(16), (std::vector<int32_t>{4, 3, 4}));
  EXPECT_EQ(take(13), (std::vector<int32_t>{3, 3, 2}));
  EXPECT_EQ(take(5), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(take(1), (std::vector<int32_t>{0, 0, 0}));  // pending rows are there anyway
}

TEST(Policy, ConfidenceGoesOnWhileTheProductIsEnoughAndTakesTheFirstAlways) {
  const Policy confidence{.kind = Policy::Kind::confidence, .threshold = 0.5};
  EXPECT_EQ(allocated(confidence, table_of({1}),
                      {proposal_of(Source::mtp, {0.1, 1.0}), proposal_of(Source::mtp, {0.9, 0.6, 0.9, 0.9}),
                       proposal_of(Source::dflash2, {1.0, 0.5, 1.0, 0.999})}),
            (std::vector<int32_t>{1, 2, 3}));
}

TEST(Policy, JointIsThePseudoCodeByHand) {
  // One stream, V = 10, 13, 15, 17, … and overhead 2: rates 1/12 < 1.9/15 < 2.71/17 > (2.71 + 0.0)/19.
  EXPECT_EQ(allocated({}, table_of({10, 13, 15, 17}, 2), {proposal_of(Source::dflash2, {0.9, 0.9, 0.1})}),
            (std::vector<int32_t>{2}));
  // A plain step is a candidate: (1 + 0.2)/15 < 1/12.
  EXPECT_EQ(allocated({}, table_of({10, 13}, 2), {proposal_of(Source::dflash2, {0.2, 1.0})}),
            (std::vector<int32_t>{0}));
  // Free rows go to the larger reach; of equals to the lower index, and a bound on rows stops it.
  const std::vector<Proposal> two = {proposal_of(Source::mtp, {0.8, 0.8}), proposal_of(Source::mtp, {0.8, 0.9})};
  const TimingTable flat = table_of({10, 10, 10, 10, 10, 10, 10});
  EXPECT_EQ(allocated({.most_rows = 3}, flat, two), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(allocated({.most_rows = 4}, flat, two), (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(allocated({.most_rows = 5}, flat, two), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(allocated({.most_rows = 5}, flat, two, 2), (std::vector<int32_t>{1, 0}));  // other rows count
  EXPECT_EQ(allocated({}, flat, two), (std::vector<int32_t>{2, 2}));
}

TEST(Policy, JointBoundsDraftsByTheDepth) {
  const std::vector<double> sure(6, 1.0);
  EXPECT_EQ(
      allocated({.depth = 3}, table_of({1, 1}), {proposal_of(Source::copy, sure), proposal_of(Source::dflash2, sure)}),
      (std::vector<int32_t>{3, 3}));
}

// From one row to two a step may grow more than by all later rows together: a depth of 0 is then no place to stop.
TEST(Policy, JointPassesRowsThatDoNotPayByThemselves) {
  const TimingTable table = table_of({10, 19, 19.5, 20, 20.5, 21, 21.5, 22});
  EXPECT_EQ(allocated({}, table, {proposal_of(Source::dflash2, std::vector<double>(7, 0.8))}),
            (std::vector<int32_t>{7}));
  EXPECT_EQ(allocated({}, table, {proposal_of(Source::dflash2, std::vector<double>(7, 0.5))}),
            (std::vector<int32_t>{0}));  // at most 2 tokens for twice the time
  EXPECT_EQ(allocated({.most_rows = 2}, table, {proposal_of(Source::dflash2, std::vector<double>(7, 0.8))}),
            (std::vector<int32_t>{0}));  // two rows alone do not pay
  // Two streams: the dear row is passed together.
  EXPECT_EQ(allocated({}, table_of({10, 20, 38, 38.1, 38.2, 38.3}),
                      {proposal_of(Source::mtp, {0.9, 0.9}), proposal_of(Source::mtp, {0.95, 0.95})}),
            (std::vector<int32_t>{2, 2}));
  // Rows that change nothing are not taken.
  EXPECT_EQ(allocated({}, table_of({10, 10, 10}), {proposal_of(Source::mtp, {1.0, 0.0, 0.0})}),
            (std::vector<int32_t>{1}));
}

// E(k)/ms(k) of every depth by 5.1, with tables of any shape.
TEST(Policy, JointOfOneStreamIsTheBestDepth) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int round = 0; round < 500; ++round) {
    std::vector<double> confidence, verify = {1 + unit(random)};
    for (int i = 0; i < 7; ++i) confidence.push_back(1 - unit(random) * unit(random));
    for (int i = 0; i < 8; ++i) verify.push_back(verify.back() + unit(random) * unit(random));
    int32_t best = 0;
    double best_rate = 1 / (verify[0] + 0.1), tokens = 1, reach = 1;
    for (int32_t k = 1; k <= 7; ++k) {
      tokens += reach *= confidence[static_cast<size_t>(k - 1)];
      const double rate = tokens / (verify[static_cast<size_t>(k)] + 0.1);
      if (rate > best_rate) best_rate = rate, best = k;
    }
    EXPECT_EQ(allocated({}, table_of(verify, 0.1), {proposal_of(Source::mtp, confidence)}),
              (std::vector<int32_t>{best}));
  }
}

TEST(Policy, ConfidencesThatAreNoNumbersAreNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(allocated({}, table_of({1, 1}), {proposal_of(Source::mtp, {nan, nan})}), (std::vector<int32_t>{0}));
  EXPECT_EQ(allocated({.kind = Policy::Kind::confidence}, table_of({1}), {proposal_of(Source::mtp, {nan, 1.0})}),
            (std::vector<int32_t>{1}));
}

TEST(Policy, NeverTakesMoreThanThereIs) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<Proposal> proposals;
    for (auto i = random() % 9; i > 0; --i) {
      std::vector<double> confidence(random() % (most_drafts + 1));
      for (double& value : confidence) value = static_cast<double>(random() % 1000) / 999;
      proposals.push_back(proposal_of(static_cast<Source>(1 + random() % 3), confidence));
    }
    Policy policy{.kind = static_cast<Policy::Kind>(random() % 3), .depth = static_cast<int32_t>(random() % 8)};
    policy.most_rows = static_cast<int32_t>(random() % 40);
    const auto other = static_cast<int64_t>(random() % 20);
    const auto most = static_cast<int32_t>(random() % 16);
    const auto take = allocated(policy, built_in_table(), proposals, other, most);
    const int64_t rows = other + std::ssize(proposals);
    int64_t drafts = 0;
    for (size_t i = 0; i < take.size(); ++i) {
      EXPECT_GE(take[i], 0);
      EXPECT_LE(take[i], std::min(most, proposals[i].count));
      if (policy.depth > 0) {
        EXPECT_LE(take[i], policy.depth);
      }
      drafts += take[i];
    }
    if (policy.most_rows > 0 && drafts > 0) {
      EXPECT_LE(rows + drafts, policy.most_rows);
    }
    EXPECT_EQ(allocated(policy, built_in_table(), proposals, other, most), take);
  }
}

TEST(Policy, WantsAPlaceForEachWish) {
  std::vector<int32_t> take(1);
  EXPECT_THROW(allocate({}, built_in_table(), {}, 0, take), Error);
}

TEST(TimingTable, GoesOnByItsLastSlope) {
  const TimingTable table = table_of({10, 13, 15});
  EXPECT_EQ(table.verify(1), 10);
  EXPECT_EQ(table.verify(3), 15);
  EXPECT_EQ(table.verify(5), 19);
  EXPECT_EQ(table_of({10}).verify(3), 30);
  EXPECT_THROW(table_of({}).verify(1), Error);
}

TEST(TimingTable, TheBuiltInOneAscends) {
  const TimingTable table = built_in_table();
  EXPECT_EQ(table.id, "built-in");
  ASSERT_EQ(table.verify_ms.size(), 16u);
  EXPECT_EQ(table.verify(1), 1.0);
  for (int64_t rows = 2; rows < 40; ++rows) EXPECT_GT(table.verify(rows), table.verify(rows - 1));
  EXPECT_NEAR(table.verify(8), 67.0 / 30, 0.1);  // about 40 + 6 · 4.7 ms of 30
}

TEST(Choice, IsReadAndPrinted) {
  for (const char* name : {"none", "copy", "mtp", "dflash2", "auto"})
    EXPECT_EQ(name_of(parse_choice(name, "--drafter")), name);
  EXPECT_EQ(name_of(Source::copy), "copy");
  try {
    parse_choice("eagle", "drafter");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_EQ(error.where(), "drafter");
    EXPECT_EQ(error.found(), "'eagle'");
  }
  EXPECT_THROW(parse_choice("automatic", "drafter"), Error);
}

TEST(Proposal, IsCutBeforeAnIdThatCannotBe) {
  Proposal proposal = proposal_of(Source::mtp, {1, 1, 1});
  proposal.tokens = {5, 63, 0};
  EXPECT_FALSE(cut_invalid(proposal, 64));
  EXPECT_EQ(proposal.count, 3);
  EXPECT_TRUE(cut_invalid(proposal, 63));
  EXPECT_EQ(proposal.count, 1);
  proposal.tokens[0] = -1;
  EXPECT_TRUE(cut_invalid(proposal, 64));
  EXPECT_EQ(proposal.count, 0);
}

}  // namespace
}  // namespace tandem::draft::policy_test
