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

// `arguments` of a call, an object or a string that holds one, as the text of a JSON object. History written by other
// servers may hold anything in the string form: what is not JSON becomes {} instead of failing the request (C.4).
std::string read_call_arguments(const Field& call);

}  // namespace tandem::chat
