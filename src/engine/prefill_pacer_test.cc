// Slices that take their budget, the decoding streams' share of the time, and the division of a slice.
#include "engine/prefill_pacer.h"

#include <limits>
#include <random>

namespace tandem::engine::prefill_pacer_test {
namespace {

Time ms(double milliseconds) { return Time(static_cast<int64_t>(milliseconds * 1e6)); }

// A machine whose steps cost `base` + `row` · rows.
void run(PrefillPacer& pacer, Time& now, int64_t rows, double base, double row, bool on_credit = true) {
  const Time began = now;
  now += ms(base + row * static_cast<double>(rows));
  pacer.step_done({.began = began, .ended = now, .rows = rows, .prompt_rows = rows, .on_credit = on_credit});
}

TEST(PrefillPacer, SlicesApproachTheirBudget) {
  PrefillPacer pacer(200, 0.5, 4096);
  Time now{0};
  EXPECT_EQ(pacer.slice_rows(), 16);  // nothing was measured
  for (int i = 0; i < 60; ++i) run(pacer, now, pacer.slice_rows(), 20, 0.5);
  EXPECT_NEAR(20 + 0.5 * pacer.slice_rows(), 200, 16);
  EXPECT_EQ(pacer.slice_rows() % 16, 0);
  for (int i = 0; i < 60; ++i) run(pacer, now, pacer.slice_rows(), 20, 5);  // ten times slower
  EXPECT_NEAR(20 + 5 * pacer.slice_rows(), 200, 80);
}

TEST(PrefillPacer, SlicesHaveBounds) {
  PrefillPacer slow(1, 0.5, 512), fast(200, 0.5, 512), off(0, 0.5, 512), tiny(200, 0.5, 5);
  Time now{0};
  run(slow, now, 16, 0, 1000);
  run(fast, now, 16, 0, 0.0001);
  EXPECT_EQ(slow.slice_rows(), 16);
  EXPECT_EQ(fast.slice_rows(), 512);
  EXPECT_EQ(off.slice_rows(), 512);
  EXPECT_EQ(tiny.slice_rows(), 5);
}

TEST(PrefillPacer, DecodingStreamsGetTheirShareOfTheTime) {
  for (const double share : {0.25, 0.5, 0.8, 1.0}) {
    PrefillPacer pacer(200, share, 4096);
    Time now = ms(1000);
    run(pacer, now, 100, 0, 1);
    const double owed = 100 * (1 - share) / share;
    EXPECT_FALSE(pacer.has_credit(now + ms(owed - 0.01)));
    EXPECT_TRUE(pacer.has_credit(now + ms(owed + 0.01)));
  }
}

TEST(PrefillPacer, SharesAndTimesOutOfRangeAreTakenAsTheNearest) {
  const auto debt_ms = [](double share, double step_ms) {
    PrefillPacer pacer(200, share, 4096);
    Time now = ms(1000);
    run(pacer, now, 100, step_ms, 0);
    int64_t low = 0, high = int64_t{1} << 41;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (pacer.has_credit(now + std::chrono::milliseconds(middle))) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  };
  for (const double share : {0.01, 0.001, 1e-300, 0.0, -1.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_EQ(debt_ms(share, 100), 9'900) << share;
  for (const double share : {1.0, 1.5, std::numeric_limits<double>::infinity()}) EXPECT_EQ(debt_ms(share, 100), 0);
  EXPECT_EQ(debt_ms(0.01, 1e12), 1'000'000'000);  // a step of thirty years
  EXPECT_EQ(debt_ms(0.01, -500), 0);              // a clock that went back
}

TEST(PrefillPacer, WhatNeedsNoCreditTakesNone) {
  PrefillPacer pacer(200, 0.5, 4096);
  Time now = ms(1000);
  run(pacer, now, 100, 0, 1, false);
  EXPECT_TRUE(pacer.has_credit(now));
}

std::vector<int64_t> shared(std::vector<Fill> fills, int64_t rows) {
  share_rows(fills, rows);
  std::vector<int64_t> granted;
  for (const Fill& fill : fills) granted.push_back(fill.granted);
  return granted;
}

TEST(ShareRows, ShortestFirstWithAQuarterForTheOldest) {
  EXPECT_EQ(shared({{1000, 1000, 0}}, 64), (std::vector<int64_t>{64}));
  EXPECT_EQ(shared({{1000, 1000, 0}, {10, 10, 0}}, 64), (std::vector<int64_t>{54, 10}));
  EXPECT_EQ(shared({{1000, 1000, 0}, {500, 500, 0}, {400, 400, 0}}, 64), (std::vector<int64_t>{16, 0, 48}));
  EXPECT_EQ(shared({{50, 50, 0}, {50, 50, 0}}, 64), (std::vector<int64_t>{50, 14}));  // ties to the older
  EXPECT_EQ(shared({{8, 8, 0}, {50, 50, 0}}, 64), (std::vector<int64_t>{8, 50}));
  EXPECT_EQ(shared({{1000, 1000, 0}, {2, 2, 0}}, 1), (std::vector<int64_t>{1, 0}));
  EXPECT_TRUE(shared({}, 64).empty());
}

TEST(ShareRows, LimitsLeaveRowsToOthers) {
  EXPECT_EQ(shared({{1000, 4, 0}, {20, 3, 0}, {500, 500, 0}}, 64), (std::vector<int64_t>{4, 3, 57}));
}

TEST(ShareRows, NeverMoreThanThereIs) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<Fill> fills(random() % 8);
    int64_t limits = 0;
    for (Fill& fill : fills) {
      fill.remaining = 1 + random() % 100;
      fill.limit = 1 + random() % static_cast<unsigned>(fill.remaining);
      limits += fill.limit;
    }
    const int64_t rows = 1 + random() % 200;
    share_rows(fills, rows);
    int64_t granted = 0;
    for (const Fill& fill : fills) {
      EXPECT_GE(fill.granted, 0);
      EXPECT_LE(fill.granted, fill.limit);
      granted += fill.granted;
    }
    EXPECT_EQ(granted, std::min(rows, limits));
    if (!fills.empty()) {
      EXPECT_GE(fills[0].granted, std::min(fills[0].limit, std::max<int64_t>(1, rows / 4)));
    }
  }
}

}  // namespace
}  // namespace tandem::engine::prefill_pacer_test
