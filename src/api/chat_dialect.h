// Replies of POST /v1/chat/completions.
#pragma once

#include <memory>

#include "api/chat_request.h"
#include "api/choice_group.h"
#include "api/reply_dialect.h"

namespace tandem::api {

// Choice number `index`; `totals` is what all choices of the reply share.
std::shared_ptr<ReplyDialect> make_chat_dialect(const ChatRequest& request, std::shared_ptr<ChoiceTotals> totals,
                                                int64_t index);

}  // namespace tandem::api
