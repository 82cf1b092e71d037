// The body of POST /v1/messages and /v1/messages/count_tokens (Anthropic's dialect, spec/frontend.md D.7), read into
// the same structs as a chat.
#pragma once

#include <string_view>

#include "api/chat_request.h"
#include "api/served_model.h"
#include "chat/messages.h"

namespace tandem::api {

struct MessagesRequest {
  ChatRequest request;
  chat::Conversation conversation;
};

// Throws ApiError 400 and Error(usage), both naming the field: wrong type, out of range, or a field that would change
// the reply and is not implemented. Unknown fields are ignored. Pictures: as in a chat, those of the newest user
// message are refused and older ones and those in tool results become chat::kPictureReminder.
MessagesRequest parse_messages_request(std::string_view body, const ServedModel& model);

}  // namespace tandem::api
