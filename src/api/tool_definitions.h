// Definitions of tools from the dialects that spell them flat, in the form that the prompt shows (spec/frontend.md
// C.3).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "chat/field.h"

namespace tandem::api {

// JSON text of {"name", "description", "parameters"}, in the order that the model was trained on. `description`: left
// out when not given, else a string. `schema`: an object; {} when not given. Throws Error(usage) for another type.
std::string tool_definition(std::string_view name, const std::optional<chat::Field>& description,
                            const std::optional<chat::Field>& schema);

// Refuses a name that is not 1 to 128 of the letters, digits, "_", "-" and `more`, or that is among `names` already,
// and adds it. Throws Error(usage) naming `where`.
void add_tool_name(const chat::Field& where, const std::string& name, std::string_view more,
                   std::unordered_set<std::string>& names);

}  // namespace tandem::api
