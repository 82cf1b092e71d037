// Printed as Python would, since the model was trained on that.
#include "api/tool_definitions.h"

#include <fmt/core.h>

#include <algorithm>

#include "chat/json.h"

namespace tandem::api {

using chat::Field;

std::string tool_definition(std::string_view name, const std::optional<Field>& description,
                            const std::optional<Field>& schema) {
  std::string out = R"({"name": )";
  chat::print_python_json(name, out);
  if (description) {
    out += R"(, "description": )";
    chat::print_python_json(std::string_view(description->string()), out);
  }
  out += R"(, "parameters": )";
  if (schema) {
    chat::print_python_json(schema->object().value(), out);
  } else {
    out += "{}";
  }
  return out += '}';
}

void add_tool_name(const Field& where, const std::string& name, std::string_view more,
                   std::unordered_set<std::string>& names) {
  const bool usable = !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [more](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '-' ||
           more.find(c) != std::string_view::npos;
  });
  if (!usable) where.unexpected(fmt::format("1 to 128 of A-Z a-z 0-9 _ -{}{}", more.empty() ? "" : " ", more));
  if (!names.insert(name).second) where.unexpected("a name that no other tool has");
}

}  // namespace tandem::api
