// Replies of POST /v1/chat/completions.
#pragma once

#include <memory>

#include "api/chat_request.h"
#include "api/reply_dialect.h"

namespace tandem::api {

std::shared_ptr<ReplyDialect> make_chat_dialect(const ChatRequest& request);

}  // namespace tandem::api
