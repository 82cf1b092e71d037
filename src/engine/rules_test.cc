// Rules on tokens, alone and together.
#include <algorithm>

#include "engine/reasoning_rule.h"
#include "engine/repetition.h"
#include "engine/rule_list.h"

namespace tandem::engine::rules_test {
namespace {

std::vector<int32_t> allowed(TokenRule& rule, int32_t size = 64) {
  std::vector<uint32_t> bits(static_cast<size_t>(size) / 32, ~uint32_t{0});
  if (rule.masks()) rule.mask(bits);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < size; ++id)
    if ((bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) ids.push_back(id);
  return ids;
}
bool has(const std::vector<int32_t>& ids, int32_t id) { return std::binary_search(ids.begin(), ids.end(), id); }

TEST(ReasoningRule, MarkersOfTurnsDoNotComeBeforeItCloses) {
  ReasoningRule rule(40, {33, 34}, -1);
  EXPECT_EQ(allowed(rule).size(), 62u);
  EXPECT_FALSE(has(allowed(rule), 33));
  EXPECT_EQ(rule.allowed_drafts(std::vector<int32_t>{1, 33, 2}), 1);
  EXPECT_EQ(rule.allowed_drafts(std::vector<int32_t>{1, 40, 33, 2}), 4) << "behind the close they may";
  rule.accept(40);
  EXPECT_FALSE(rule.masks());
  EXPECT_EQ(allowed(rule).size(), 64u);
}

// spec/frontend.md C.8: reasoning tokens are counted with the closer.
TEST(ReasoningRule, TheBudgetClosesReasoning) {
  ReasoningRule rule(40, {}, 3);
  EXPECT_FALSE(rule.masks());
  EXPECT_EQ(rule.allowed_drafts(std::vector<int32_t>{1, 2, 3}), 2);
  EXPECT_EQ(rule.allowed_drafts(std::vector<int32_t>{1, 2, 40, 3}), 4);
  rule.accept(1);
  rule.accept(2);
  EXPECT_EQ(allowed(rule), std::vector<int32_t>{40});
  rule.accept(40);
  EXPECT_EQ(allowed(rule).size(), 64u);
  for (const int64_t budget : {0, 1}) {
    ReasoningRule at_once(40, {33}, budget);
    EXPECT_EQ(allowed(at_once), std::vector<int32_t>{40});
  }
}

class Without : public TokenRule {
 public:
  explicit Without(int32_t id, bool ends = false) : id_(id), ends_(ends) {}
  void mask(std::span<uint32_t> bits) override { bits[static_cast<size_t>(id_) / 32] &= ~(1u << (id_ % 32)); }
  void accept(int32_t token) override { seen_.push_back(token); }
  int32_t allowed_drafts(std::span<const int32_t> drafts) override {
    return static_cast<int32_t>(std::find(drafts.begin(), drafts.end(), id_) - drafts.begin());
  }
  bool is_finished() const override { return ends_ && seen_.size() == 2; }
  std::vector<int32_t> seen_;

 private:
  int32_t id_;
  bool ends_;
};

TEST(RuleList, MasksMeetAndTheStrictestCutsDrafts) {
  const auto first = std::make_shared<Without>(3), second = std::make_shared<Without>(5, true);
  RuleList both({first, second});
  EXPECT_FALSE(has(allowed(both), 3));
  EXPECT_FALSE(has(allowed(both), 5));
  EXPECT_EQ(allowed(both).size(), 62u);
  EXPECT_EQ(both.allowed_drafts(std::vector<int32_t>{1, 2, 5, 3}), 2);
  EXPECT_EQ(both.allowed_drafts(std::vector<int32_t>{1, 3, 5}), 1);
  both.accept(7);
  EXPECT_FALSE(both.is_finished());
  both.accept(8);
  EXPECT_TRUE(both.is_finished());
  EXPECT_EQ(first->seen_, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(RuleList::of({nullptr, nullptr}), nullptr);
  EXPECT_EQ(RuleList::of({nullptr, first}), first);
  EXPECT_NE(RuleList::of({first, second}), nullptr);
}

TEST(RuleList, ABudgetWinsOverAnotherRuleOnlyWhereBothLetTheCloserCome) {
  RuleList both({std::make_shared<ReasoningRule>(40, std::vector<int32_t>{}, 1), std::make_shared<Without>(40)});
  EXPECT_TRUE(allowed(both).empty());
}

TEST(Repetition, APatternAtTheEnd) {
  const RepetitionLimit limit{.max_size = 3, .min_size = 2, .min_count = 3};
  const auto ends = [&](std::vector<int32_t> reply) { return ends_in_repetition(reply, limit); };
  EXPECT_TRUE(ends({9, 1, 2, 1, 2, 1, 2}));
  EXPECT_FALSE(ends({1, 2, 1, 2, 1, 2, 9}));
  EXPECT_FALSE(ends({3, 2, 1, 2, 1, 2})) << "twice and a half";
  EXPECT_TRUE(ends({1, 2, 3, 1, 2, 3, 1, 2, 3}));
  EXPECT_FALSE(ends({1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4})) << "a longer pattern";
  EXPECT_FALSE(ends({5, 5, 5})) << "a shorter one";
  EXPECT_TRUE(ends({5, 5, 5, 5, 5, 5})) << "which is one of two tokens as well";
  EXPECT_FALSE(ends({}));
}

}  // namespace
}  // namespace tandem::engine::rules_test
