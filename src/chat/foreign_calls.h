// Tool calls in the formats of other models, which this family sometimes writes inside its own <tool_call> token:
// {"name": …, "arguments": {…}}, a list of those, or <function=NAME><parameter=KEY>value</parameter></function>.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/messages.h"
#include "chat/tool_values.h"

namespace tandem::chat {

// False as soon as `text`, the beginning of what follows <tool_call>, cannot be one of the formats. A name has to come
// within the first 512 bytes.
bool may_be_foreign_call(std::string_view text);

// The calls in the whole text between <tool_call> and </tool_call>, ids left empty. None: it is not in these formats,
// or a name is missing.
std::optional<std::vector<ToolCall>> foreign_calls(std::string_view text, const ToolSchemas& schemas);

}  // namespace tandem::chat
