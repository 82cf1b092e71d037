// Where states are kept: the candidates and their order.
#include "engine/keep_points.h"

namespace tandem::engine::keep_points_test {
namespace {

std::vector<int64_t> points(const KeepRules& rules, const PromptToKeep& prompt, int64_t after = 0) {
  std::vector<int64_t> lengths;
  for (KeepPoint point = next_keep_point(rules, prompt, after); point.length != 0;
       point = next_keep_point(rules, prompt, point.length))
    lengths.push_back(point.length);
  return lengths;
}

TEST(KeepPoints, TheEndOfEveryPrompt) {
  const KeepRules rules;
  EXPECT_EQ(points(rules, {.length = 1, .fork = 0, .positions = {}}), (std::vector<int64_t>{1}));
  EXPECT_EQ(points(rules, {.length = 900, .fork = 0, .positions = {}}), (std::vector<int64_t>{900}));
  EXPECT_TRUE(points(rules, {.length = 900, .fork = 0, .positions = {}}, 900).empty());
}

TEST(KeepPoints, PositionsOfTheRequestBeyondTheResumedLength) {
  const std::vector<int64_t> positions = {5, 40, 40, 90, 100};
  EXPECT_EQ(points({}, {.length = 100, .fork = 0, .positions = positions}), (std::vector<int64_t>{5, 40, 90, 100}));
  EXPECT_EQ(points({}, {.length = 100, .fork = 0, .positions = positions}, 40), (std::vector<int64_t>{90, 100}));
}

TEST(KeepPoints, AForkIsMarked) {
  const std::vector<int64_t> positions = {40};
  const PromptToKeep prompt{.length = 100, .fork = 60, .positions = positions};
  EXPECT_EQ(points({}, prompt), (std::vector<int64_t>{40, 60, 100}));
  EXPECT_EQ(next_keep_point({}, prompt, 0), (KeepPoint{40, false}));
  EXPECT_EQ(next_keep_point({}, prompt, 40), (KeepPoint{60, true}));
  EXPECT_EQ(next_keep_point({}, prompt, 60), (KeepPoint{100, false}));
}

TEST(KeepPoints, AForkMustLieFarEnoughBehindTheResumedState) {
  EXPECT_EQ(fork_point({}, 100, 115), 0);
  EXPECT_EQ(fork_point({}, 100, 116), 116);
  EXPECT_EQ(fork_point({}, 0, 16), 16);
}

TEST(KeepPoints, TheStrideWidensWithThePosition) {
  const auto all = points({}, {.length = 1 << 20, .fork = 0, .positions = {}});
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    const int64_t stride = all[i + 1] - all[i];
    EXPECT_EQ(all[i] % 1024, 0);
    if (all[i] < 16384) {
      EXPECT_EQ(stride, 1024);
    }
    EXPECT_LE(stride, std::max<int64_t>(1024, all[i] / 8)) << all[i];
    if (all[i] >= 16384 * 8) {
      EXPECT_EQ(stride, 16384);
    }
  }
  EXPECT_LT(all.size(), 120u);  // states of a prompt of a million tokens
  // The same absolute positions wherever the prompt was resumed.
  EXPECT_EQ(next_keep_point({}, {.length = 1 << 20, .fork = 0, .positions = {}}, 5000).length, 5120);
  EXPECT_EQ(next_keep_point({}, {.length = 1 << 20, .fork = 0, .positions = {}}, 5120).length, 6144);
}

TEST(KeepPoints, NoStrideKeepsOnlyWhatIsAskedFor) {
  KeepRules rules;
  rules.smallest_stride = 0;
  EXPECT_EQ(points(rules, {.length = 100000, .fork = 0, .positions = {}}), (std::vector<int64_t>{100000}));
}

}  // namespace
}  // namespace tandem::engine::keep_points_test
