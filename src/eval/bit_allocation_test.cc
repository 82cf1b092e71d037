// The greedy rule on tables that can be done by hand.
#include "eval/bit_allocation.h"

#include <cmath>

namespace tandem::eval::bit_allocation_test {
namespace {

int64_t bits_of(const std::vector<AllocationGroup>& groups, const std::vector<size_t>& chosen) {
  int64_t bits = 0;
  for (size_t i = 0; i < groups.size(); ++i) bits += groups[i].weights * groups[i].bits[chosen[i]];
  return bits;
}

TEST(Allocate, WhatGainsMostABitComesFirst) {
  const std::vector<AllocationGroup> groups = {{"a", 100, {3, 4, 5}, {0, -0.010, -0.011}},
                                               {"b", 100, {3, 4, 5}, {0, -0.001, -0.0011}},
                                               {"c", 100, {3, 4, 5}, {0, -0.005, -0.0059}}};
  EXPECT_EQ(allocate(groups, 900), (std::vector<size_t>{0, 0, 0})) << "nothing is left";
  EXPECT_EQ(allocate(groups, 999), (std::vector<size_t>{0, 0, 0})) << "a bit for nobody";
  EXPECT_EQ(allocate(groups, 1000), (std::vector<size_t>{1, 0, 0}));
  EXPECT_EQ(allocate(groups, 1100), (std::vector<size_t>{1, 0, 1}));
  EXPECT_EQ(allocate(groups, 1500), (std::vector<size_t>{2, 2, 2}));
  for (const double budget : {900.0, 1050.0, 1234.0, 1400.0, 2000.0})
    EXPECT_LE(static_cast<double>(bits_of(groups, allocate(groups, budget))), std::max(budget, 900.0));
}

TEST(Allocate, SmallGroupsAreCheaper) {
  const std::vector<AllocationGroup> groups = {{"large", 1000, {3, 4}, {0, -0.004}},
                                               {"small", 10, {3, 4}, {0, -0.003}}};
  EXPECT_EQ(allocate(groups, 3 * 1010 + 10), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(allocate(groups, 3 * 1010 + 1000), (std::vector<size_t>{0, 1})) << "then the large one does not fit";
  EXPECT_EQ(allocate(groups, 4 * 1010), (std::vector<size_t>{1, 1}));
}

// a(d) = −|d|^0.69 below 0 and d above (2.10): a width that makes it worse is never taken.
TEST(Allocate, WorseIsNotTaken) {
  const std::vector<AllocationGroup> groups = {{"worse", 100, {3, 4}, {0, 0.001}}, {"none", 100, {3, 4}, {0, 0}}};
  EXPECT_EQ(allocate(groups, 10000), (std::vector<size_t>{0, 0}));
  // |−1e-6|^0.69 over 1 bit against |−4e-6|^0.69 over two: 7.2e-5 and 9.4e-5, so the narrower step comes first.
  EXPECT_EQ(allocate({{"a", 100, {3, 4, 5}, {0, -1e-6, -4e-6}}}, 400), (std::vector<size_t>{1}));
}

TEST(CandidateBits, AreAroundTheTarget) {
  EXPECT_EQ(candidate_bits(4), (std::vector<int>{3, 4, 5, 6}));
  EXPECT_EQ(candidate_bits(3), (std::vector<int>{2, 3, 4, 5}));
  EXPECT_EQ(candidate_bits(3.5), (std::vector<int>{3, 4, 5, 6}));
  EXPECT_EQ(candidate_bits(1), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(candidate_bits(8), (std::vector<int>{7, 8}));
}

}  // namespace
}  // namespace tandem::eval::bit_allocation_test
