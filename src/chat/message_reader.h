// The `messages` and `tools` of a chat body, read into plain structs (spec/frontend.md C.4, C.5, D.2, D.3).
#pragma once

#include <string>
#include <vector>

#include "chat/field.h"
#include "chat/messages.h"

namespace tandem::chat {

// Both take the whole body and throw Error(usage) naming the field. `normalise`: see parse_conversation.
std::vector<Message> read_messages(const Field& body, bool normalise);
std::vector<std::string> read_tools(const Field& body, bool normalise);

}  // namespace tandem::chat
