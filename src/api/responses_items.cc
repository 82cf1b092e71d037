// One function a kind of item.
#include "api/responses_items.h"

#include <optional>
#include <utility>

#include "api/responses_tools.h"
#include "base/log.h"
#include "chat/message_reader.h"

namespace tandem::api {

namespace {

using chat::Field;
using chat::Message;
using chat::Part;
using chat::Role;

void add_text_of_item(Message& message, std::string text) {
  if (!text.empty()) message.content.push_back({Part::Kind::text, std::move(text), {}});
}

// The type of an item; what has a role and no type is a message.
std::string type_of(const Field& item) {
  if (!item.object().has("type") && item.has("role")) return "message";
  return item.require("type", "the type of the item").string();
}

// The parts of a message or of the output of a call.
void read_parts(const Field& content, bool pictures_may_be_left_out, Message& message) {
  static constexpr std::string_view expected = "input_text, output_text or refusal: this server takes text only";
  if (const std::string* text = content.value().string()) return add_text_of_item(message, *text);
  const size_t count = content.list_size();
  for (size_t i = 0; i < count; ++i) {
    const Field part = content.at(i);
    const Field type = part.object().require("type", expected);
    const std::string& name = type.string();
    if (name == "input_text" || name == "output_text" || name == "text") {
      add_text_of_item(message, part.require("text", "a string").string());
    } else if (name == "refusal") {
      add_text_of_item(message, part.require("refusal", "a string").string());
    } else if (name == "input_image" && pictures_may_be_left_out) {
      add_text_of_item(message, std::string(chat::kPictureReminder));
    } else {
      type.unexpected(expected);
    }
  }
}

Role read_responses_role(const Field& item) {
  static constexpr std::string_view expected = "user, assistant, system or developer";
  const Field field = item.require("role", expected);
  const std::string& role = field.string();
  if (role == "user") return Role::user;
  if (role == "assistant") return Role::assistant;
  if (role == "system" || role == "developer") return Role::system;
  field.unexpected(expected);
}

// `content` of a reasoning item, else its summary.
std::string reasoning_text(const Field& item) {
  std::string text;
  for (const auto* key : {"content", "summary"}) {
    const auto list = item.get(key);
    if (!list) continue;
    const size_t count = list->list_size();
    for (size_t i = 0; i < count; ++i) text += list->at(i).object().require("text", "a string").string();
    if (!text.empty()) return text;
  }
  return text;
}

std::string call_id(const Field& item) { return item.require("call_id", "the id of the call").string(); }

class ItemReader {
 public:
  explicit ItemReader(const ItemLookup& lookup) : lookup_(&lookup) {}

  void read(const Field& item, bool is_newest_user) {
    const std::string type = type_of(item);
    if (type == "message") {
      read_message(item, is_newest_user);
    } else if (type == "reasoning") {
      add_reasoning(reasoning_text(item));
    } else if (type == "function_call") {
      call(item, chat::read_call_arguments(item));
    } else if (type == "custom_tool_call") {
      call(item, custom_arguments(item.require("input", "a string").string()));
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      Message result;
      result.role = Role::tool;
      result.tool_call_id = call_id(item);
      read_parts(item.require("output", "a string or a list of parts"), true, result);
      add(std::move(result));
    } else if (type == "item_reference") {
      refer(item.require("id", "the id of an item").string());
    } else {
      log(LogLevel::info, "responses request: an item of type {} is skipped", chat::quoted(type));
    }
  }

  std::vector<Message> messages;

 private:
  void add(Message message) {
    is_open_ = false;
    reasoning_.reset();
    messages.push_back(std::move(message));
  }

  // The assistant message that the next content or call belongs to.
  Message& turn() {
    if (!is_open_) {
      Message message;
      message.role = Role::assistant;
      message.reasoning_content = std::exchange(reasoning_, std::nullopt);
      messages.push_back(std::move(message));
      is_open_ = true;
    }
    return messages.back();
  }

  // Of what follows it. Reasoning that nothing follows was cut off and is left out.
  void add_reasoning(const std::string& text) {
    is_open_ = false;
    if (text.empty()) return;
    if (!reasoning_) reasoning_.emplace();
    *reasoning_ += text;
  }

  void read_message(const Field& item, bool is_newest_user) {
    Message message;
    message.role = read_responses_role(item);
    if (const auto content = item.get("content")) {
      read_parts(*content, message.role == Role::user && !is_newest_user, message);
    }
    if (message.role == Role::assistant) return add_content(std::move(message.content));
    add(std::move(message));
  }

  void add_content(std::vector<Part> content) {
    if (content.empty()) return;
    std::vector<Part>& parts = turn().content;
    parts.insert(parts.end(), std::make_move_iterator(content.begin()), std::make_move_iterator(content.end()));
  }

  void call(const Field& item, std::string arguments) {
    const auto name_space = item.get("namespace");
    const Field name = item.require("name", "the name of a tool");
    if (name.string().empty()) name.unexpected("the name of a tool");
    const std::string space = name_space ? name_space->string() : std::string();
    turn().tool_calls.push_back({call_id(item), shown_tool_name(space, name.string()), std::move(arguments)});
  }

  void refer(const std::string& id) {
    const std::optional<Message> said = *lookup_ ? (*lookup_)(id) : std::nullopt;
    if (!said) {
      log(LogLevel::info, "responses request: a reference to an item that is not kept is skipped");
      return;
    }
    if (said->reasoning_content) add_reasoning(*said->reasoning_content);
    add_content(said->content);
    for (const chat::ToolCall& made : said->tool_calls) turn().tool_calls.push_back(made);
  }

  const ItemLookup* lookup_;
  bool is_open_ = false;                  // the last message is the assistant's and may grow
  std::optional<std::string> reasoning_;  // of the assistant message to come
};

}  // namespace

std::vector<Message> read_response_items(const Field& input, const ItemLookup& lookup) {
  if (const std::string* text = input.value().string()) {
    Message message;
    add_text_of_item(message, *text);
    return {std::move(message)};
  }
  const size_t count = input.list_size();
  size_t newest_user = count;
  for (size_t i = 0; i < count; ++i) {
    const Field item = input.at(i);
    if (type_of(item) == "message" && read_responses_role(item) == Role::user) newest_user = i;
  }
  ItemReader reader(lookup);
  for (size_t i = 0; i < count; ++i) reader.read(input.at(i), i == newest_user);
  return std::move(reader.messages);
}

}  // namespace tandem::api
