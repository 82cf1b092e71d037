// One function a kind of block.
#include "api/messages_blocks.h"

#include <string_view>
#include <utility>

#include "base/error.h"

namespace tandem::api {

namespace {

using chat::Field;
using chat::Message;
using chat::Part;
using chat::Role;

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";

void add_text_part(Message& message, std::string text) {
  if (!text.empty()) message.content.push_back({Part::Kind::text, std::move(text), {}});
}

Field block_type(const Field& block, std::string_view expected) { return block.object().require("type", expected); }

// A picture, where the model can do without seeing it.
void add_picture(Message& message, const Field& type, bool may_be_left_out) {
  if (!may_be_left_out) type.unexpected("a text block: this server takes text only");
  add_text_part(message, std::string(chat::kPictureReminder));
}

// Only documents whose source is text.
void add_document(Message& message, const Field& block) {
  const Field source = block.require("source", "a source of type text");
  const Field type = block_type(source, "text");
  if (type.string() != "text") type.unexpected("text: this server takes text only");
  add_text_part(message, source.require("data", "a string").string());
}

Message tool_result(const Field& block) {
  Message message;
  message.role = Role::tool;
  message.tool_call_id = block.require("tool_use_id", "the id of the tool_use block").string();
  const auto failed = block.get("is_error");
  if (failed && failed->boolean()) add_text_part(message, "Error: ");
  const auto content = block.get("content");
  if (!content) return message;
  if (const std::string* text = content->value().string()) {
    add_text_part(message, *text);
    return message;
  }
  const size_t count = content->list_size();
  for (size_t i = 0; i < count; ++i) {
    const Field part = content->at(i);
    const Field type = block_type(part, "text or image");
    if (type.string() == "text") {
      add_text_part(message, part.require("text", "a string").string());
    } else if (type.string() == "image") {
      add_picture(message, type, true);
    } else if (type.string() == "document") {
      add_document(message, part);
    } else {
      type.unexpected("text or image");
    }
  }
  return message;
}

void read_user(const Field& content, bool newest, std::vector<Message>& messages) {
  static constexpr std::string_view expected = "text, tool_result, image or document";
  Message turn;
  bool has_results = false;
  const size_t count = content.list_size();
  for (size_t i = 0; i < count; ++i) {
    const Field block = content.at(i);
    const Field type = block_type(block, expected);
    if (type.string() == "text") {
      add_text_part(turn, block.require("text", "a string").string());
    } else if (type.string() == "tool_result") {
      messages.push_back(tool_result(block));
      has_results = true;
    } else if (type.string() == "image") {
      add_picture(turn, type, !newest);
    } else if (type.string() == "document") {
      add_document(turn, block);
    } else {
      type.unexpected(expected);
    }
  }
  if (!has_results || !turn.content.empty()) messages.push_back(std::move(turn));
}

chat::ToolCall tool_use(const Field& block) {
  chat::ToolCall call;
  call.id = block.require("id", "a string").string();
  const Field name = block.require("name", "the name of a tool");
  call.name = name.string();
  if (call.name.empty()) name.unexpected("the name of a tool");
  const auto input = block.get("input");
  if (input) input->object();
  call.arguments = "{}";
  if (input) {
    call.arguments.clear();
    chat::print_python_json(input->value(), call.arguments);
  }
  return call;
}

void read_assistant(const Field& content, std::vector<Message>& messages) {
  static constexpr std::string_view expected = "text, thinking, redacted_thinking or tool_use";
  Message turn;
  turn.role = Role::assistant;
  const size_t count = content.list_size();
  for (size_t i = 0; i < count; ++i) {
    const Field block = content.at(i);
    const Field type = block_type(block, expected);
    if (type.string() == "text") {
      add_text_part(turn, block.require("text", "a string").string());
    } else if (type.string() == "thinking") {
      if (!turn.reasoning_content) turn.reasoning_content.emplace();
      *turn.reasoning_content += block.require("thinking", "a string").string();
    } else if (type.string() == "tool_use") {
      turn.tool_calls.push_back(tool_use(block));
    } else if (type.string() != "redacted_thinking") {  // nobody but its author can read that
      type.unexpected(expected);
    }
  }
  messages.push_back(std::move(turn));
}

Role read_messages_role(const Field& message) {
  static constexpr std::string_view expected = "user, assistant or system";
  const Field field = message.object().require("role", expected);
  const std::string& role = field.string();
  if (role == "user") return Role::user;
  if (role == "assistant") return Role::assistant;
  if (role == "system") return Role::system;
  field.unexpected(expected);
}

}  // namespace

std::string read_system_text(const Field& system) {
  if (const std::string* text = system.value().string()) return *text;
  std::string joined;
  const size_t count = system.list_size();
  for (size_t i = 0; i < count; ++i) {
    const Field block = system.at(i);
    const Field type = block_type(block, "text");
    if (type.string() != "text") type.unexpected("text");
    const std::string& text = block.require("text", "a string").string();
    if (text.empty() || text.starts_with(kBillingHeader)) continue;
    if (!joined.empty()) joined += '\n';
    joined += text;
  }
  return joined;
}

std::vector<Message> read_block_messages(const Field& list) {
  const size_t count = list.list_size();
  if (count == 0) throw Error(ErrorCode::usage, list.path(), "found an empty list", "at least one message");
  std::vector<Role> roles;
  size_t newest_user = count;
  for (size_t i = 0; i < count; ++i) {
    roles.push_back(read_messages_role(list.at(i)));
    if (roles.back() == Role::user) newest_user = i;
  }
  std::vector<Message> messages;
  for (size_t i = 0; i < count; ++i) {
    const Field message = list.at(i);
    const Field content = message.require("content", "a string or a list of blocks");
    const std::string* text = content.value().string();
    if (text != nullptr || roles[i] == Role::system) {
      Message turn;
      turn.role = roles[i];
      add_text_part(turn, text != nullptr ? *text : read_system_text(content));
      messages.push_back(std::move(turn));
    } else if (roles[i] == Role::user) {
      read_user(content, i == newest_user, messages);
    } else {
      read_assistant(content, messages);
    }
  }
  return messages;
}

}  // namespace tandem::api
