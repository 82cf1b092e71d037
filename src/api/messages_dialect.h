// Replies of POST /v1/messages (Anthropic's dialect, spec/frontend.md D.7).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "api/chat_prompt.h"
#include "api/reply_dialect.h"

namespace tandem::api {

// {"type":"error","error":{"type","message"},"request_id"}, with the headers of ApiError::reply().
Reply messages_error(const ApiError& error, const std::string& request_id);

// From the body to what the engine runs; throws as prepare_reply(). Thread-safe.
PreparedChat prepare_messages(std::string_view body, const ServedModel& model, const ChatRules& rules,
                              const std::string& request_id);

// The answer to POST /v1/messages/count_tokens. Throws likewise. Thread-safe.
std::string count_tokens_reply(std::string_view body, const ServedModel& model);

}  // namespace tandem::api
