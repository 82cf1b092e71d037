// Items of the Responses dialect (spec/frontend.md D.6) as messages of a conversation.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/field.h"
#include "chat/messages.h"

namespace tandem::api {

// What an item of an earlier response said: an assistant message with reasoning, content or calls of that item alone.
// None: no such item is kept.
using ItemLookup = std::function<std::optional<chat::Message>(std::string_view item_id)>;

// `input`, a string (one user message) or a list of items. Reasoning, messages of the assistant and calls that follow
// each other become one assistant message. Items that mean nothing to this model (calls of tools that run elsewhere,
// references to what is not kept) are skipped and logged. Pictures: as in a chat, those of the newest user message are
// refused, others become chat::kPictureReminder. Throws Error(usage) naming the field.
std::vector<chat::Message> read_response_items(const chat::Field& input, const ItemLookup& lookup);

}  // namespace tandem::api
