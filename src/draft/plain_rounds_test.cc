// Rests grow while drafts do not pay and end with the first trial that does.
#include "draft/plain_rounds.h"

namespace tandem::draft::plain_rounds_test {
namespace {

// One round of a stream whose drafts yield `tokens` in 2 ms, with plain steps of 1 ms. Whether drafts were made.
bool round(PlainRounds& plain, double tokens) {
  if (!plain.drafts()) return false;
  plain.add(tokens, 2, 1);
  return true;
}

int rounds_until_drafts(PlainRounds& plain, double tokens) {
  for (int i = 0; i < 1000; ++i)
    if (round(plain, tokens)) return i;
  return -1;
}

TEST(PlainRounds, DraftsThatPayGoOn) {
  PlainRounds plain;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(round(plain, 2.5));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(round(plain, 2));  // as good as plain steps
}

TEST(PlainRounds, RestsGrowWhileTrialsFail) {
  PlainRounds plain;
  for (int i = 0; i < PlainRounds::judged; ++i) EXPECT_TRUE(round(plain, 1));
  for (const int rest : {8, 16, 32, 64, 64, 64}) EXPECT_EQ(rounds_until_drafts(plain, 1), rest);
}

TEST(PlainRounds, ATrialThatPaysEndsTheRests) {
  PlainRounds plain;
  for (int i = 0; i < PlainRounds::judged; ++i) round(plain, 1);
  EXPECT_EQ(rounds_until_drafts(plain, 1), 8);
  EXPECT_EQ(rounds_until_drafts(plain, 8), 16);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(round(plain, 4));
  int bad = 0;  // what was gained carries a few bad rounds
  while (round(plain, 1)) ++bad;
  EXPECT_GE(bad, PlainRounds::judged);
  EXPECT_LE(bad, 2 * PlainRounds::remembered);
  EXPECT_EQ(rounds_until_drafts(plain, 1), 7);  // of a rest of 8 that began with the last round
}

TEST(PlainRounds, OneBadRoundIsNoReason) {
  PlainRounds plain;
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(round(plain, i % 3 == 0 ? 1 : 3));
}

}  // namespace
}  // namespace tandem::draft::plain_rounds_test
