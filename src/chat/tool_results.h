// The order in which a run of tool results is shown to the model (spec/frontend.md C.5), in linear time: agents send
// histories with thousands of results.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "chat/messages.h"

namespace tandem::chat {

// One <tool_response>: a whole tool message, or one output of a message whose content is a list of outputs.
struct ToolResult {
  const Message* message = nullptr;
  const Part* output = nullptr;  // null: the whole message
  std::string_view id;           // empty: none
};

// The results of consecutive tool messages. They follow the order of the caller's calls if every result and every call
// has an id, no id occurs twice on either side and every result belongs to a call; otherwise they stay as received.
// `caller`: the assistant message before the run, or null. The results point into `run`.
std::vector<ToolResult> ordered_results(std::span<const Message> run, const Message* caller);

}  // namespace tandem::chat
