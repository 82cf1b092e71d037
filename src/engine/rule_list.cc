// Masks are intersections, and a draft is as long as the strictest rule lets it be.
#include "engine/rule_list.h"

#include <algorithm>
#include <utility>

namespace tandem::engine {

RuleList::RuleList(std::vector<std::shared_ptr<TokenRule>> rules) : rules_(std::move(rules)) {}

std::shared_ptr<TokenRule> RuleList::of(std::vector<std::shared_ptr<TokenRule>> rules) {
  std::erase(rules, nullptr);
  if (rules.empty()) return nullptr;
  if (rules.size() == 1) return std::move(rules.front());
  return std::make_shared<RuleList>(std::move(rules));
}

void RuleList::mask(std::span<uint32_t> bits) {
  for (const auto& rule : rules_) {
    if (rule->masks()) rule->mask(bits);
  }
}

bool RuleList::masks() const {
  return std::any_of(rules_.begin(), rules_.end(), [](const auto& rule) { return rule->masks(); });
}

void RuleList::accept(int32_t token) {
  for (const auto& rule : rules_) rule->accept(token);
}

int32_t RuleList::allowed_drafts(std::span<const int32_t> drafts) {
  for (const auto& rule : rules_) drafts = drafts.first(static_cast<size_t>(rule->allowed_drafts(drafts)));
  return static_cast<int32_t>(drafts.size());
}

bool RuleList::list_masked(std::span<const int32_t> tokens, std::vector<int32_t>& ids) {
  return std::all_of(rules_.begin(), rules_.end(), [&](const auto& rule) { return rule->list_masked(tokens, ids); });
}

bool RuleList::is_finished() const {
  return std::any_of(rules_.begin(), rules_.end(), [](const auto& rule) { return rule->is_finished(); });
}

}  // namespace tandem::engine
