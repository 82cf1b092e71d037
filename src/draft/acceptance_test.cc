// Corrections of confidences, and the rule of two arms.
#include "draft/acceptance.h"

#include <cmath>
#include <limits>

#include "draft/arms.h"

namespace tandem::draft::acceptance_test {
namespace {

TEST(Acceptance, StartsFromTheConfidenceItself) {
  const AcceptanceStatistics statistics;
  for (const double raw : {0.01, 0.3, 0.999, 1.0}) EXPECT_NEAR(statistics.corrected(Source::mtp, 2, raw), raw, 1e-12);
  EXPECT_EQ(statistics.corrected(Source::mtp, 0, 0), AcceptanceStatistics::least);
  EXPECT_EQ(statistics.corrected(Source::mtp, 0, std::numeric_limits<double>::quiet_NaN()),
            AcceptanceStatistics::least);
  EXPECT_EQ(statistics.corrected(Source::mtp, 0, 7), 1);
}

TEST(Acceptance, IsTheDecayedShareOfItsCell) {
  AcceptanceStatistics statistics;
  double tried = 0, accepted = 0;
  for (int i = 0; i < 100; ++i) {
    const bool right = i % 3 == 0;
    statistics.add(Source::dflash2, 1, 0.8, right);
    tried = tried * 0.97 + 1;
    accepted = accepted * 0.97 + right;
  }
  const double weight = AcceptanceStatistics::prior_weight;
  EXPECT_NEAR(statistics.corrected(Source::dflash2, 1, 0.8), (accepted + weight * 0.8) / (tried + weight), 1e-12);
  EXPECT_NEAR(statistics.corrected(Source::dflash2, 1, 0.8), 0.38, 0.05);
  EXPECT_NEAR(statistics.corrected(Source::dflash2, 0, 0.8), 0.8, 1e-12);  // other position, source, band
  EXPECT_NEAR(statistics.corrected(Source::mtp, 1, 0.8), 0.8, 1e-12);
  EXPECT_NEAR(statistics.corrected(Source::dflash2, 1, 0.6), 0.6, 1e-12);
  const double before = statistics.corrected(Source::dflash2, 1, 0.8);
  for (int i = 0; i < 5000; ++i) statistics.fade();
  EXPECT_GT(statistics.corrected(Source::dflash2, 1, 0.8), before + 0.2);  // tried again some day
}

// A model whose drafts are mostly right however sure it says it is.
TEST(Acceptance, LowConfidencesAreTriedWhereDraftsAreMostlyRight) {
  AcceptanceStatistics statistics;
  for (int i = 0; i < 100; ++i) statistics.add(Source::mtp, 1, 0.95, true);
  const double weight = AcceptanceStatistics::prior_weight, tried = (1 - std::pow(0.97, 100)) / 0.03;
  const double share = tried / (tried + weight);
  EXPECT_NEAR(statistics.corrected(Source::mtp, 1, 0.2), (0.2 + share) / 2, 1e-9);
  EXPECT_NEAR(statistics.corrected(Source::mtp, 2, 0.2), 0.2, 1e-12);
  for (int i = 0; i < 20; ++i) statistics.add(Source::mtp, 1, 0.2, false);  // they are not: that is believed
  EXPECT_LT(statistics.corrected(Source::mtp, 1, 0.2), 0.15);
}

TEST(Acceptance, DraftsAfterAMissAreNotJudged) {
  AcceptanceStatistics statistics;
  Proposal proposal;
  proposal.source = Source::mtp;
  proposal.count = 5;
  std::array<double, most_drafts> raw{};
  for (size_t i = 0; i < 5; ++i) raw[i] = proposal.confidence[i] = 0.5;
  statistics.add_round(proposal, raw, 4, 1);
  EXPECT_GT(statistics.corrected(Source::mtp, 0, 0.5), 0.5);
  EXPECT_LT(statistics.corrected(Source::mtp, 1, 0.5), 0.5);
  EXPECT_EQ(statistics.corrected(Source::mtp, 2, 0.5), 0.5);
  EXPECT_EQ(statistics.corrected(Source::mtp, 4, 0.5), 0.5);
  const auto& total = statistics.total(Source::mtp);
  EXPECT_EQ(total.rounds, 1);
  EXPECT_EQ(total.tried, 4);
  EXPECT_EQ(total.accepted, 1);
  EXPECT_EQ(total.accepted_at[0], 1);
  EXPECT_EQ(total.accepted_at[1], 0);
  EXPECT_NEAR(total.expected, 0.5 + 0.25 + 0.125 + 0.0625, 1e-12);
  statistics.add_round(proposal, raw, 0, 0);
  statistics.add_round(proposal, raw, 99, 99);  // more than there are: all
  EXPECT_EQ(total.rounds, 2);
  EXPECT_EQ(total.accepted, 6);
  proposal.source = Source::none;
  statistics.add_round(proposal, raw, 3, 3);
  EXPECT_EQ(statistics.total(Source::none).rounds, 0);
}

// Drives arms with what each yields a round; returns which was used.
std::vector<Source> used(Arms& arms, int rounds, double dflash2, double mtp) {
  std::vector<Source> sources_used;
  for (int round = 0; round < rounds; ++round) {
    const Source arm = arms.next();
    sources_used.push_back(arm);
    arms.add(arm, arm == Source::mtp ? mtp : dflash2, 1);
  }
  return sources_used;
}

TEST(Arms, ExploreThenStayAndProbeEveryEightRounds) {
  Arms arms;
  const auto rounds = used(arms, 31, 4, 2);
  for (int round = 0; round < 31; ++round) {
    const bool mtp = round == 2 || round == 3 || round == 12 || round == 21 || round == 30;
    EXPECT_EQ(rounds[static_cast<size_t>(round)], mtp ? Source::mtp : Source::dflash2) << round;
  }
}

TEST(Arms, SwitchOnlyForThreePercentMore) {
  Arms steady;
  used(steady, 4, 2, 1);
  for (const Source arm : used(steady, 6, 2, 2.05)) EXPECT_EQ(arm, Source::dflash2);
  Arms arms;
  used(arms, 4, 1, 1);  // equal: DFlash2
  EXPECT_EQ(arms.next(), Source::dflash2);
  const auto rounds = used(arms, 40, 1, 1.2);
  EXPECT_EQ(rounds[8], Source::mtp);  // the probe shows it, over the two rounds of before
  EXPECT_EQ(rounds[9], Source::mtp);  // (1 + 1 + 1.2) / 3 > 1.03
  EXPECT_EQ(rounds[11], Source::mtp);
  EXPECT_EQ(rounds[12], Source::dflash2);  // probed again 3 rounds after the switch
  EXPECT_EQ(rounds[13], Source::mtp);
  EXPECT_EQ(rounds[21], Source::dflash2);  // and every 8 after that
}

TEST(Arms, RatesAreOfTheLastSixRounds) {
  Arms arms;
  used(arms, 4 + 4, 3, 1);
  const auto rounds = used(arms, 40, 1, 2);  // DFlash2 falls behind what MTP once gave
  const auto first = std::find(rounds.begin(), rounds.end(), Source::mtp) - rounds.begin();
  EXPECT_LE(first, 6);
  EXPECT_EQ(std::count(rounds.begin() + 20, rounds.end(), Source::mtp), 18);
  arms.reset();
  EXPECT_EQ(arms.next(), Source::dflash2);
  arms.add(Source::copy, 100, 1);  // no arm
  EXPECT_EQ(used(arms, 4, 1, 1), (std::vector<Source>{Source::dflash2, Source::dflash2, Source::mtp, Source::mtp}));
}

}  // namespace
}  // namespace tandem::draft::acceptance_test
