// Several rules on one reply: a token may come if all of them let it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace tandem::engine {

// Event::error of a request whose rule and stop ids contradict each other: the request's fault, not the engine's.
inline constexpr std::string_view no_token_left = "its rule and its stop ids leave no token";

class RuleList : public TokenRule {
 public:
  explicit RuleList(std::vector<std::shared_ptr<TokenRule>> rules);

  void mask(std::span<uint32_t> bits) override;
  bool masks() const override;
  void accept(int32_t token) override;
  int32_t allowed_drafts(std::span<const int32_t> drafts) override;
  bool list_masked(std::span<const int32_t> tokens, std::vector<int32_t>& ids) override;
  bool is_finished() const override;

  // None: null; one: itself.
  static std::shared_ptr<TokenRule> of(std::vector<std::shared_ptr<TokenRule>> rules);

 private:
  std::vector<std::shared_ptr<TokenRule>> rules_;
};

}  // namespace tandem::engine
