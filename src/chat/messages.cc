// The switches of a chat body (effort, thinking, generation prompt) around its messages and tools.
#include "chat/messages.h"

#include <algorithm>

#include "chat/field.h"
#include "chat/message_reader.h"

namespace tandem::chat {
namespace {

// One requested level (C.7). `off` is the effort "none".
struct EffortChoice {
  bool off = false;
  Effort effort = Effort::max;
};

EffortChoice read_effort(const Field& field) {
  static constexpr std::string_view kExpected = "one of none, minimal, low, medium, high, xhigh, max";
  std::string level = field.string();
  std::transform(level.begin(), level.end(), level.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (level == "none") return {.off = true};
  if (level == "minimal" || level == "low") return {.effort = Effort::low};
  if (level == "medium" || level == "high") return {.effort = Effort::high};
  if (level == "xhigh" || level == "max") return {.effort = Effort::max};
  field.unexpected(kExpected);
}

// {"type": "enabled" | "disabled"}; other types ("adaptive") decide nothing.
std::optional<bool> read_thinking_type(const Field& thinking) {
  const std::optional<Field> type = thinking.object().get("type");
  if (!type) return std::nullopt;
  if (type->string() == "enabled") return true;
  if (type->string() == "disabled") return false;
  return std::nullopt;
}

std::optional<bool> read_flag(const std::optional<Field>& object, std::string_view key) {
  if (!object) return std::nullopt;
  const std::optional<Field> flag = object->get(key);
  return flag ? std::optional<bool>(flag->boolean()) : std::nullopt;
}

std::optional<Field> get_object(const Field& body, std::string_view key) {
  std::optional<Field> found = body.get(key);
  if (found) found->object();
  return found;
}

}  // namespace

// The first source that says anything wins; every source that is present must have the right type.
void read_switches(const Field& body, Conversation& conversation) {
  const std::optional<Field> kwargs = get_object(body, "chat_template_kwargs");
  const std::optional<Field> thinking = get_object(body, "thinking");
  const std::optional<Field> reasoning = get_object(body, "reasoning");

  std::vector<std::optional<bool>> thinking_sources{read_flag(kwargs, "enable_thinking")};
  if (const std::optional<Field> field = kwargs ? kwargs->get("thinking") : std::nullopt) {
    thinking_sources.push_back(field->value().boolean() ? field->boolean() : read_thinking_type(*field));
  }
  if (thinking) thinking_sources.push_back(read_thinking_type(*thinking));
  thinking_sources.push_back(read_flag(reasoning, "enabled"));

  std::optional<EffortChoice> effort;
  const auto consider = [&effort](const std::optional<Field>& object, std::string_view key) {
    const std::optional<Field> field = object ? object->get(key) : std::nullopt;
    if (!field) return;
    const EffortChoice choice = read_effort(*field);
    if (!effort) effort = choice;
  };
  consider(body, "reasoning_effort");
  consider(reasoning, "effort");
  consider(kwargs, "reasoning_effort");
  if (effort) {
    conversation.effort = effort->effort;
    thinking_sources.push_back(effort->off ? std::optional<bool>(false) : std::nullopt);
  }

  const auto decided =
      std::find_if(thinking_sources.begin(), thinking_sources.end(), [](const auto& flag) { return flag.has_value(); });
  if (decided != thinking_sources.end()) conversation.thinking = **decided;

  for (const std::optional<bool>& clear : {read_flag(kwargs, "clear_thinking"), read_flag(thinking, "clear_thinking"),
                                           read_flag(body, "clear_thinking")}) {
    if (clear) {
      conversation.clear_thinking = *clear;
      break;
    }
  }
  conversation.add_generation_prompt = read_flag(body, "add_generation_prompt").value_or(true);
}

namespace {

// What the hub template makes of its variables: exact spellings, Python truth, everything else means the default.
void read_template_variables(const Field& body, Conversation& conversation) {
  const JsonValue* effort = body.value().find("reasoning_effort");
  const std::string* level = effort ? effort->string() : nullptr;
  if (level != nullptr && *level == "low") conversation.effort = Effort::low;
  if (level != nullptr && *level == "high") conversation.effort = Effort::high;
  const JsonValue* clear = body.value().find("clear_thinking");
  conversation.clear_thinking = clear != nullptr && clear->truthy();
  const JsonValue* generate = body.value().find("add_generation_prompt");
  conversation.add_generation_prompt = generate == nullptr || generate->truthy();
}

}  // namespace

Conversation parse_conversation(std::string_view body_json, bool normalise) {
  const JsonValue root = parse_json(body_json, "body");
  const Field body(root, "");
  body.object();
  Conversation conversation;
  conversation.messages = read_messages(body, normalise);
  conversation.tools = read_tools(body, normalise);
  if (normalise) {
    read_switches(body, conversation);
  } else {
    read_template_variables(body, conversation);
  }
  return conversation;
}

}  // namespace tandem::chat
