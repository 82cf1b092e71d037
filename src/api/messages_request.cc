// Fields of a messages body beside the messages themselves.
#include "api/messages_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>

#include "api/chat_prompt.h"
#include "api/errors.h"
#include "api/field_rules.h"
#include "api/json_body.h"
#include "api/messages_blocks.h"
#include "api/tool_definitions.h"
#include "base/error.h"
#include "base/log.h"

namespace tandem::api {

namespace {

using chat::Effort;
using chat::Field;

// A budget of thinking tokens also chooses the nearest effort, so that the model plans for it.
constexpr int64_t low_budget = 4096, high_budget = 16384;

void refuse_unsupported_messages_fields(const JsonBody& body) {
  for (const auto* name : {"mcp_servers", "container", "output_format", "prompt_logprobs"}) {
    if (body.is_set(name)) throw not_supported(name, "this field");
  }
}

Effort effort_named(const std::string& level) {
  if (level == "low") return Effort::low;
  if (level == "medium" || level == "high") return Effort::high;
  if (level == "xhigh" || level == "max") return Effort::max;
  throw invalid_field("output_config.effort", "expected one of low, medium, high, xhigh, max");
}

// Thinking is on unless it is disabled, and shown only to a client that asked for it: others do not expect its blocks.
void read_thinking(const JsonBody& body, MessagesRequest& out) {
  out.request.include_reasoning = false;
  if (const auto thinking = body.object("thinking")) {
    const std::string type = thinking->string("type").value_or("");
    if (type != "enabled" && type != "adaptive" && type != "disabled") {
      throw invalid_field("thinking.type", "expected enabled, adaptive or disabled");
    }
    out.conversation.thinking = type != "disabled";
    out.request.include_reasoning = out.conversation.thinking;
    if (const auto budget = thinking->integer("budget_tokens", 1, any_integer); budget && type == "enabled") {
      out.request.thinking_budget = *budget;
      out.conversation.effort = *budget <= low_budget    ? Effort::low
                                : *budget <= high_budget ? Effort::high
                                                         : Effort::max;
    }
  }
  if (const auto config = body.object("output_config")) {
    if (const auto level = config->string("effort")) out.conversation.effort = effort_named(*level);
  }
}

void read_messages_tool_choice(const JsonBody& body, ChatRequest& request) {
  const auto choice = body.object("tool_choice");
  if (!choice) return;
  request.parallel_tool_calls = !choice->boolean("disable_parallel_tool_use").value_or(false);
  const std::string type = choice->string("type").value_or("");
  if (type == "tool") {
    request.tool_named = choice->string("name").value_or("");
    if (request.tool_named.empty()) throw invalid_field("tool_choice.name", "missing; expected the name of a tool");
  }
  request.tool_required = type == "any" || type == "tool";
  if (!request.tool_required && type != "auto" && type != "none")
    throw invalid_field("tool_choice.type", "expected auto, any, tool or none");
  request.tool_choice_none = type == "none";
}

// {"type": "json_schema", "schema": …}
OutputFormat read_format(const Field& format) {
  const Field type = format.require("type", "json_schema");
  if (type.string() != "json_schema") type.unexpected("json_schema");
  return json_schema_format(format.require("schema", "a JSON schema").object().value(), "output_config.format.schema");
}

std::vector<std::string> read_tools(const Field& body) {
  std::vector<std::string> tools;
  const auto list = body.get("tools");
  if (!list) return tools;
  std::unordered_set<std::string> names;
  const size_t count = list->list_size();
  for (size_t i = 0; i < count; ++i) {
    const Field tool = list->at(i);
    const auto type = tool.object().get("type");
    if (type && type->string() != "custom") {
      log(LogLevel::info, "messages request: a tool that runs on Anthropic's servers is not offered to the model");
      continue;
    }
    const Field name = tool.require("name", "the name of the tool");
    add_tool_name(name, name.string(), {}, names);
    tools.push_back(tool_definition(name.string(), tool.get("description"), tool.get("input_schema")));
  }
  return tools;
}

// A last message of the assistant is the beginning of the reply.
void read_prefill(chat::Conversation& conversation) {
  const chat::Message& last = conversation.messages.back();
  if (last.role != chat::Role::assistant) return;
  if (!last.tool_calls.empty()) {
    throw invalid_field("messages", "the last message calls tools; expected their results after it");
  }
  if (!last.content.empty()) {
    const char end = last.content.back().text.back();
    if (end == ' ' || end == '\n' || end == '\t' || end == '\r') {
      throw invalid_field("messages", "the last message is the assistant's and ends with white space");
    }
  }
  conversation.add_generation_prompt = false;
}

}  // namespace

MessagesRequest parse_messages_request(std::string_view text, const ServedModel& model) {
  const JsonBody body = JsonBody::parse(text);
  const chat::JsonValue root = chat::parse_json(text, "body");
  const Field fields(root, "");
  MessagesRequest out;
  ChatRequest& request = out.request;
  read_generation_fields(body, model, 1, request);
  if (request.choices != 1) throw not_supported("n", "more than one choice");
  request.include_usage = request.continuous_usage_stats = false;
  request.prompt_logprobs = -1;
  if (body.has("stop_sequences")) request.stop = read_stop_strings(body, "stop_sequences", false);
  read_thinking(body, out);
  if (body.has("chat_template_kwargs")) chat::read_switches(fields, out.conversation);
  apply_preset(model, request.model, body, out.conversation);
  read_messages_tool_choice(body, request);
  refuse_unsupported(body);
  refuse_unsupported_messages_fields(body);

  if (const auto config = fields.get("output_config")) {
    if (const auto format = config->get("format")) request.format = read_format(*format);
  }
  out.conversation.tools = read_tools(fields);
  if (const auto system = fields.get("system")) {
    if (std::string instructions = read_system_text(*system); !instructions.empty()) {
      chat::Message message;
      message.role = chat::Role::system;
      message.content.push_back({chat::Part::Kind::text, std::move(instructions), {}});
      out.conversation.messages.push_back(std::move(message));
    }
  }
  for (chat::Message& message : read_block_messages(fields.require("messages", "a list of messages"))) {
    out.conversation.messages.push_back(std::move(message));
  }
  read_prefill(out.conversation);
  return out;
}

}  // namespace tandem::api
