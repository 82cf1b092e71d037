// Reading messages: roles, content parts, reasoning, tool calls, tool results; and the list of offered tools.
#include "chat/message_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "base/log.h"

namespace tandem::chat {
namespace {

enum class Pictures { placeholder, reminder, refuse };

struct Rules {
  bool normalise = true;
  Pictures pictures = Pictures::refuse;
};

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string string_or_empty(const Field& object, std::string_view key) {
  const std::optional<Field> field = object.get(key);
  return field ? field->string() : std::string();
}

Role read_role(const Field& message, bool normalise) {
  static constexpr std::string_view kExpected = "one of system, developer, user, assistant, tool, function";
  const Field field = message.require("role", kExpected);
  const std::string& role = field.string();
  if (role == "system") return Role::system;
  if (role == "user") return Role::user;
  if (role == "assistant") return Role::assistant;
  if (role == "tool") return Role::tool;
  if (!normalise) return Role::other;
  if (role == "developer") return Role::system;
  if (role == "function") return Role::tool;
  field.unexpected(kExpected);
}

// The kind of a media part, or `other`.
Part::Kind media_kind(std::string_view type) {
  if (is_one_of(type, {"image", "image_url", "input_image"})) return Part::Kind::image;
  if (is_one_of(type, {"video", "video_url", "input_video"})) return Part::Kind::video;
  if (is_one_of(type, {"audio", "audio_url", "input_audio"})) return Part::Kind::audio;
  return Part::Kind::other;
}

// One element of a content list of an un-normalised body: what the hub template prints (C.4).
Part read_template_part(const Field& field) {
  const JsonValue* type_value = field.value().find("type");
  const std::string* type = type_value ? type_value->string() : nullptr;
  if (type == nullptr) return {Part::Kind::other, {}, {}};
  if (*type == "text") return {Part::Kind::text, string_or_empty(field, "text"), {}};
  if (is_one_of(*type, {"input_image", "input_video"})) return {Part::Kind::other, {}, {}};
  return {media_kind(*type), {}, {}};
}

// One element of a content list of a request. Thinking parts go to `reasoning` and give no part.
std::optional<Part> read_request_part(const Field& field, const Rules& rules, Role role, std::string& reasoning) {
  static constexpr std::string_view kExpected = "a text part: this server takes text only";
  const Field type_field = field.object().require("type", kExpected);
  const std::string& type = type_field.string();
  if (is_one_of(type, {"text", "input_text", "output_text"})) {
    return Part{Part::Kind::text, field.require("text", "a string").string(), {}};
  }
  if (type == "refusal") return Part{Part::Kind::text, field.require("refusal", "a string").string(), {}};
  if (type == "thinking" && role == Role::assistant) {
    reasoning += field.require("thinking", "a string").string();
    return std::nullopt;
  }
  const Part::Kind kind = media_kind(type);
  if (rules.pictures == Pictures::reminder && (kind == Part::Kind::image || kind == Part::Kind::video)) {
    return Part{Part::Kind::text, std::string(kPictureReminder), {}};
  }
  type_field.unexpected(kExpected);
}

// The two special lists of tool results (C.5): references to offered tools, and outputs that each give a response.
std::optional<Part> read_special_result(const Field& field, Part::Kind kind, bool normalise) {
  if (kind == Part::Kind::tool_reference) {
    const JsonValue* type_value = field.value().find("type");
    const std::string* type = type_value ? type_value->string() : nullptr;
    if (type != nullptr && *type == "tool_reference") return Part{kind, string_or_empty(field, "name"), {}};
    if (normalise) throw Error(ErrorCode::usage, field.path(), "found another part", "tool_reference parts only");
    return std::nullopt;
  }
  const Field output = field.object().require("output", "an output in every element");
  Part part{kind, {}, string_or_empty(field, "tool_call_id")};
  if (part.id.empty()) part.id = string_or_empty(field, "id");
  if (!output.value().is_null()) {
    part.text = output.string();
  } else if (!normalise) {
    part.text = "None";
  }
  return part;
}

Part::Kind special_kind(const Field& first) {
  if (first.has("output")) return Part::Kind::output;
  const JsonValue* type_value = first.value().find("type");
  const std::string* type = type_value ? type_value->string() : nullptr;
  return type != nullptr && *type == "tool_reference" ? Part::Kind::tool_reference : Part::Kind::text;
}

void read_content(const Field& message_field, const Rules& rules, Message& message, std::string& reasoning) {
  const JsonValue* value = message_field.value().find("content");
  if (value == nullptr) return;
  const Field content = message_field.require("content", "");
  if (value->is_null()) {
    message.content_is_null = !rules.normalise;
    return;
  }
  if (value->string() != nullptr) {
    message.content.push_back({Part::Kind::text, *value->string(), {}});
    return;
  }
  if (value->array() == nullptr) content.wrong_type("a string, null or a list of parts");
  message.content_is_list = true;
  const std::size_t count = content.list_size();
  const Part::Kind special = message.role == Role::tool && count > 0 ? special_kind(content.at(0)) : Part::Kind::text;
  for (std::size_t i = 0; i < count; ++i) {
    const Field field = content.at(i);
    std::optional<Part> part;
    if (special != Part::Kind::text) {
      part = read_special_result(field, special, rules.normalise);
    } else if (const std::string* text = field.value().string()) {
      part = Part{Part::Kind::text, *text, {}};
    } else {
      part = rules.normalise ? read_request_part(field, rules, message.role, reasoning) : read_template_part(field);
    }
    if (part) message.content.push_back(std::move(*part));
  }
}

// D.3: the synonyms of reasoning_content, in this order; thinking parts of the content come last.
std::optional<std::string> read_reasoning(const Field& message, const std::string& thinking_parts) {
  for (const std::string_view key : {"reasoning_content", "reasoning"}) {
    if (const std::optional<Field> field = message.get(key)) return field->string();
  }
  std::string joined;
  if (const std::optional<Field> details = message.get("reasoning_details")) {
    const std::size_t count = details->list_size();
    for (std::size_t i = 0; i < count; ++i) {
      const Field detail = details->at(i);
      if (string_or_empty(detail.object(), "type") == "reasoning.text") joined += string_or_empty(detail, "text");
    }
  }
  if (joined.empty()) joined = thinking_parts;
  return joined.empty() ? std::nullopt : std::optional<std::string>(std::move(joined));
}

std::string printed(const JsonValue& value) {
  std::string out;
  print_python_json(value, out);
  return out;
}

std::string read_arguments(const Field& function, bool normalise) {
  static constexpr std::string_view kExpected = "an object or a string that holds one";
  if (!normalise) return printed(function.require("arguments", "an object").object().value());
  const std::optional<Field> field = function.get("arguments");
  if (!field) return "{}";
  if (field->value().object() != nullptr) return printed(field->value());
  if (field->value().string() == nullptr) field->wrong_type(kExpected);
  const std::string& text = *field->value().string();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return "{}";
  JsonValue parsed;
  try {
    parsed = parse_json(text, field->path());
  } catch (const Error& error) {
    log(LogLevel::warning, "{}: {}; the call is shown to the model without arguments", error.where(), error.found());
    return "{}";
  }
  if (parsed.is_null()) return "{}";
  if (parsed.object() == nullptr) Field(parsed, field->path()).wrong_type(kExpected);
  return printed(parsed);
}

// `call` is {"id", "function": {"name", "arguments"}} or the flat {"name", "arguments"}.
std::optional<ToolCall> read_call(const Field& call, bool normalise) {
  const std::optional<Field> nested = call.object().get("function");
  const Field& function = nested ? nested->object() : call;
  ToolCall out;
  out.name = string_or_empty(function, "name");
  if (normalise && out.name.empty()) return std::nullopt;
  out.id = string_or_empty(call, "id");
  out.arguments = read_arguments(function, normalise);
  return out;
}

void read_calls(const Field& message, bool normalise, std::vector<ToolCall>& calls) {
  if (const std::optional<Field> list = message.get("tool_calls")) {
    const std::size_t count = list->list_size();
    for (std::size_t i = 0; i < count; ++i) {
      if (std::optional<ToolCall> call = read_call(list->at(i), normalise)) calls.push_back(std::move(*call));
    }
  }
  if (!normalise || !calls.empty()) return;
  if (const std::optional<Field> legacy = message.get("function_call")) {
    if (std::optional<ToolCall> call = read_call(*legacy, normalise)) calls.push_back(std::move(*call));
  }
}

Message read_message(const Field& field, Role role, const Rules& rules) {
  Message message;
  message.role = role;
  std::string thinking_parts;
  if (role != Role::other) read_content(field, rules, message, thinking_parts);
  if (role == Role::assistant) {
    if (rules.normalise) {
      message.reasoning_content = read_reasoning(field, thinking_parts);
    } else if (const JsonValue* reasoning = field.value().find("reasoning_content")) {
      if (reasoning->string() != nullptr) message.reasoning_content = *reasoning->string();
    }
    read_calls(field, rules.normalise, message.tool_calls);
  }
  if (role == Role::tool) {
    message.tool_call_id = string_or_empty(field, "tool_call_id");
    if (message.tool_call_id.empty()) message.tool_call_id = string_or_empty(field, "id");
  }
  return message;
}

// D.2: the name decides which schema a call is checked against, so it must be usable and unique.
void check_tool(const Field& function, std::unordered_set<std::string>& names) {
  const Field field = function.require("name", "the name of the function");
  const std::string& name = field.string();
  const bool usable = !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           std::string_view("_.:-").find(c) != std::string_view::npos;
  });
  if (!usable) field.unexpected("1 to 128 of A-Z a-z 0-9 _ . : -");
  if (!names.insert(name).second) field.unexpected("a name that no other tool has");
  if (const std::optional<Field> description = function.get("description")) description->string();
  if (const std::optional<Field> parameters = function.get("parameters")) parameters->object();
}

}  // namespace

std::string read_call_arguments(const Field& call) { return read_arguments(call, true); }

std::vector<Message> read_messages(const Field& body, bool normalise) {
  const Field list = body.require("messages", "a list of messages");
  const std::size_t count = list.list_size();
  if (normalise && count == 0) throw Error(ErrorCode::usage, "messages", "found an empty list", "at least one message");
  std::vector<Role> roles;
  std::size_t newest_user = count;
  for (std::size_t i = 0; i < count; ++i) {
    roles.push_back(read_role(Field(list.at(i)).object(), normalise));
    if (roles.back() == Role::user) newest_user = i;
  }
  std::vector<Message> messages;
  for (std::size_t i = 0; i < count; ++i) {
    Rules rules{normalise, Pictures::refuse};
    if (!normalise) {
      rules.pictures = Pictures::placeholder;
    } else if (roles[i] == Role::tool || (roles[i] == Role::user && i != newest_user)) {
      rules.pictures = Pictures::reminder;
    }
    messages.push_back(read_message(list.at(i), roles[i], rules));
  }
  return messages;
}

std::vector<std::string> read_tools(const Field& body, bool normalise) {
  std::vector<std::string> tools;
  const std::optional<Field> list = body.get("tools");
  if (!list) return tools;
  const std::size_t count = list->list_size();
  std::unordered_set<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    const Field tool = list->at(i);
    tool.object();
    const Field function = tool.has("function") ? tool.require("function", "an object") : tool;
    function.object();
    if (normalise) check_tool(function, names);
    tools.push_back(printed(tool.value()));
  }
  return tools;
}

}  // namespace tandem::chat
