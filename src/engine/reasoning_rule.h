// Reasoning that is open: markers of turns do not come inside it, and at its budget it is closed (spec/frontend.md
// C.8).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace tandem::engine {

class ReasoningRule : public TokenRule {
 public:
  // `close`: the token that ends reasoning. `masked`: what may not come before it. `budget`: tokens of reasoning,
  // `close` among them; −1: any number, 0 counts as 1.
  ReasoningRule(int32_t close, std::vector<int32_t> masked, int64_t budget);

  void mask(std::span<uint32_t> bits) override;
  bool masks() const override;
  void accept(int32_t token) override;
  int32_t allowed_drafts(std::span<const int32_t> drafts) override;
  bool list_masked(std::span<const int32_t> tokens, std::vector<int32_t>& ids) override;

 private:
  bool is_spent(int64_t count) const { return budget_ >= 0 && count + 1 >= budget_; }
  bool may_come(int32_t token, int64_t count) const;

  const int32_t close_;
  const std::vector<int32_t> masked_;
  const int64_t budget_;
  int64_t count_ = 0;
  bool is_open_ = true;
};

}  // namespace tandem::engine
