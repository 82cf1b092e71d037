// Messages of the Anthropic dialect (content blocks) as messages of a conversation.
#pragma once

#include <string>
#include <vector>

#include "chat/field.h"
#include "chat/messages.h"

namespace tandem::api {

// `system`, a string or a list of text blocks, as the text of one system message; empty: none. Blocks are joined with a
// newline. A block that begins with "x-anthropic-billing-header" is dropped: it differs from request to request and
// would keep any prefix from being reused.
std::string read_system_text(const chat::Field& system);

// `messages`. A turn of the user with tool results becomes tool messages followed by the rest of the turn. Throws
// Error(usage) naming the field.
std::vector<chat::Message> read_block_messages(const chat::Field& messages);

}  // namespace tandem::api
