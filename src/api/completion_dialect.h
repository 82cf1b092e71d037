// Replies of POST /v1/completions (spec/frontend.md D.5).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "api/chat_request.h"
#include "api/choice_group.h"
#include "api/reply_dialect.h"

namespace tandem::api {

// The prompt that the reply begins with.
struct EchoedPrompt {
  std::string text;
  int32_t first_id = 0;       // of all its tokens
  int64_t hidden_tokens = 0;  // at its front, which the text does not show
};

// Choice number `index`; `totals` is what all choices of the reply share. `echo`: what the choice begins with,
// if it was asked for; together with logprobs those of the prompt come first. With max_tokens 0 (which echo allows) the
// one token that the engine has to sample is not shown.
std::shared_ptr<ReplyDialect> make_completion_dialect(const ChatRequest& request, std::shared_ptr<ChoiceTotals> totals,
                                                      int64_t index, std::optional<EchoedPrompt> echo);

}  // namespace tandem::api
