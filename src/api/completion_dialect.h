// Replies of POST /v1/completions (spec/frontend.md D.5).
#pragma once

#include <memory>
#include <string_view>

#include "api/chat_request.h"
#include "api/choice_group.h"
#include "api/reply_dialect.h"

namespace tandem::api {

// Choice number `index`; `totals` is what all choices of the reply share. `echo`: the text that the choice begins with
// (never together with logprobs). With max_tokens 0 (which echo allows) the one token that the engine has
// to sample is not shown.
std::shared_ptr<ReplyDialect> make_completion_dialect(const ChatRequest& request, std::shared_ptr<ChoiceTotals> totals,
                                                      int64_t index, std::string_view echo);

}  // namespace tandem::api
