// Counts tokens until reasoning closes.
#include "engine/reasoning_rule.h"

#include <algorithm>
#include <utility>

namespace tandem::engine {

ReasoningRule::ReasoningRule(int32_t close, std::vector<int32_t> masked, int64_t budget)
    : close_(close), masked_(std::move(masked)), budget_(budget) {}

bool ReasoningRule::masks() const { return is_open_ && (!masked_.empty() || is_spent(count_)); }

bool ReasoningRule::may_come(int32_t token, int64_t count) const {
  if (is_spent(count)) return token == close_;
  return std::find(masked_.begin(), masked_.end(), token) == masked_.end();
}

void ReasoningRule::mask(std::span<uint32_t> bits) {
  if (!is_open_) return;
  const auto bit = [](int32_t token) { return uint32_t{1} << (token % 32); };
  if (is_spent(count_)) {
    const auto word = static_cast<size_t>(close_) / 32;
    const uint32_t kept = bits[word] & bit(close_);
    std::fill(bits.begin(), bits.end(), 0);
    bits[word] = kept;
    return;
  }
  for (const int32_t token : masked_) bits[static_cast<size_t>(token) / 32] &= ~bit(token);
}

void ReasoningRule::accept(int32_t token) {
  if (!is_open_) return;
  ++count_;
  is_open_ = token != close_;
}

int32_t ReasoningRule::allowed_drafts(std::span<const int32_t> drafts) {
  int32_t allowed = 0;
  for (bool is_open = is_open_; const int32_t token : drafts) {
    if (is_open && !may_come(token, count_ + allowed)) break;
    is_open = is_open && token != close_;
    ++allowed;
  }
  return allowed;
}

bool ReasoningRule::list_masked(std::span<const int32_t> tokens, std::vector<int32_t>& ids) {
  if (!is_open_ || std::find(tokens.begin(), tokens.end(), close_) != tokens.end()) return true;
  if (is_spent(count_ + std::ssize(tokens))) return false;  // all but one
  ids.insert(ids.end(), masked_.begin(), masked_.end());
  return true;
}

}  // namespace tandem::engine
