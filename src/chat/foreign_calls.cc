// The two formats, read from the whole text.
#include "chat/foreign_calls.h"

#include <algorithm>

#include "base/error.h"
#include "chat/json.h"
#include "chat/white_space.h"

namespace tandem::chat {
namespace {

constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";
constexpr std::size_t kForeignHeadWindow = 512;

std::optional<ToolCall> json_call(const JsonValue& value) {
  const JsonValue* name = value.find("name");
  if (name == nullptr || name->string() == nullptr) return std::nullopt;
  const JsonValue* arguments = value.find("arguments");
  if (arguments == nullptr) arguments = value.find("parameters");
  if (arguments == nullptr) return std::nullopt;
  JsonValue unquoted;
  if (arguments->string() != nullptr) {
    unquoted = parse_json(*arguments->string(), "arguments");
    arguments = &unquoted;
  }
  if (arguments->object() == nullptr) return std::nullopt;
  ToolCall call{{}, *name->string(), {}};
  print_python_json(*arguments, call.arguments);
  return call;
}

std::optional<std::vector<ToolCall>> json_calls(std::string_view text) {
  JsonValue value;
  std::vector<ToolCall> calls;
  try {
    value = parse_json(text, "tool_call");
    const JsonValue::Array one{value};
    for (const JsonValue& element : value.array() != nullptr ? *value.array() : one) {
      std::optional<ToolCall> call = json_call(element);
      if (!call) return std::nullopt;
      calls.push_back(std::move(*call));
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

// Takes "OPENER name>" from the front of `text`.
std::optional<std::string_view> take_tag(std::string_view& text, std::string_view opener) {
  if (!text.starts_with(opener)) return std::nullopt;
  const std::size_t end = text.find('>');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view name = trimmed(text.substr(opener.size(), end - opener.size()));
  text.remove_prefix(end + 1);
  return name;
}

// One line end on either side of a value belongs to the markup of that format.
std::string_view without_frame(std::string_view value) {
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  return value;
}

std::optional<std::vector<ToolCall>> tagged_call(std::string_view text, const ToolSchemas& schemas) {
  const std::optional<std::string_view> name = take_tag(text, kFunction);
  if (!name || name->empty()) return std::nullopt;
  ToolCall call{{}, std::string(*name), "{"};
  for (text = trimmed(text); !text.empty() && text != kFunctionEnd; text = trimmed(text)) {
    const std::optional<std::string_view> key = take_tag(text, kParameter);
    const std::size_t end = text.find(kParameterEnd);
    if (!key || end == std::string_view::npos) return std::nullopt;
    if (call.arguments.size() > 1) call.arguments += ", ";
    print_python_json(*key, call.arguments);
    call.arguments += ": ";
    call.arguments += typed_value(without_frame(text.substr(0, end)), schemas.types_of(*name, *key));
    text.remove_prefix(end + kParameterEnd.size());
  }
  call.arguments += "}";
  return std::vector<ToolCall>{std::move(call)};
}

}  // namespace

bool may_be_foreign_call(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  const std::string_view window = text.substr(begin, kForeignHeadWindow);
  const bool is_long = text.size() - begin > kForeignHeadWindow;
  if (window.starts_with('{') || window.starts_with('[')) {
    return !is_long || window.find("\"name\"") != std::string_view::npos;
  }
  if (window.starts_with(kFunction)) return !is_long || window.find('>') != std::string_view::npos;
  return !window.empty() && kFunction.starts_with(window);
}

std::optional<std::vector<ToolCall>> foreign_calls(std::string_view text, const ToolSchemas& schemas) {
  text = trimmed(text);
  return text.starts_with(kFunction) ? tagged_call(text, schemas) : json_calls(text);
}

}  // namespace tandem::chat
