// Fields of a messages body beside the messages themselves.
#include "api/messages_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>

#include "api/errors.h"
#include "api/json_body.h"
#include "api/messages_blocks.h"
#include "base/error.h"
#include "base/log.h"

namespace tandem::api {

namespace {

using chat::Effort;
using chat::Field;

constexpr int64_t any_integer = std::numeric_limits<int64_t>::max();
constexpr size_t max_stop_strings = 64, max_stop_bytes = 64 * 1024, max_model_name = 256, max_cache_salt = 1024;

// Below this temperature the reply is greedy; from there up to min_temperature it is raised (as in a chat).
constexpr double greedy_temperature = 1e-5, min_temperature = 0.01;

// A budget of thinking tokens also chooses the nearest effort, so that the model plans for it.
constexpr int64_t low_budget = 4096, high_budget = 16384;

std::string short_string(const JsonBody& body, std::string_view name, size_t most) {
  std::string text = body.string(name).value_or("");
  if (text.size() > most) {
    throw invalid_field(name, fmt::format("{} bytes; expected at most {}", text.size(), most));
  }
  return text;
}

void read_sampling(const JsonBody& body, const GenerationDefaults& defaults, ChatRequest& request) {
  auto& sampling = request.sampling;
  sampling.temperature = body.number("temperature", 0, 2).value_or(defaults.temperature);
  if (sampling.temperature >= greedy_temperature) {
    sampling.temperature = std::max(sampling.temperature, min_temperature);
  }
  sampling.top_p = body.number("top_p", 0, 1).value_or(defaults.top_p);
  if (sampling.top_p <= 0) throw invalid_field("top_p", "0 is out of range; expected more than 0, at most 1");
  const int64_t top_k = body.integer("top_k", -1, std::numeric_limits<int32_t>::max()).value_or(defaults.top_k);
  sampling.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  sampling.min_p = defaults.min_p;
}

void read_stops(const JsonBody& body, ChatRequest& request) {
  request.stop = body.strings("stop_sequences", false).value_or(std::vector<std::string>{});
  size_t bytes = 0;
  for (const std::string& text : request.stop) {
    if (text.empty()) throw invalid_field("stop_sequences", "found an empty string");
    bytes += text.size();
  }
  if (request.stop.size() > max_stop_strings || bytes > max_stop_bytes) {
    throw invalid_field("stop_sequences", fmt::format("{} entries of {} bytes; expected at most {} of {}",
                                                      request.stop.size(), bytes, max_stop_strings, max_stop_bytes));
  }
}

void refuse_unsupported(const JsonBody& body) {
  for (const auto* name : {"mcp_servers", "container", "output_format", "chat_template_kwargs"}) {
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

void read_tool_choice(const JsonBody& body, ChatRequest& request) {
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

// As the flat form of a function definition, in the order that the model was trained on.
std::string tool_definition(const Field& tool, const std::string& name) {
  std::string out = R"({"name": )";
  chat::print_python_json(std::string_view(name), out);
  if (const auto description = tool.get("description")) {
    out += R"(, "description": )";
    chat::print_python_json(std::string_view(description->string()), out);
  }
  out += R"(, "parameters": )";
  if (const auto schema = tool.get("input_schema")) {
    chat::print_python_json(schema->object().value(), out);
  } else {
    out += "{}";
  }
  return out += '}';
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
    const bool usable =
        !name.string().empty() && name.string().size() <= 128 &&
        std::all_of(name.string().begin(), name.string().end(), [](char c) {
          return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '-';
        });
    if (!usable) name.unexpected("1 to 128 of A-Z a-z 0-9 _ -");
    if (!names.insert(name.string()).second) name.unexpected("a name that no other tool has");
    tools.push_back(tool_definition(tool, name.string()));
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
  request.model = short_string(body, "model", max_model_name);
  request.cache_salt = short_string(body, "cache_salt", max_cache_salt);
  request.stream = body.boolean("stream").value_or(false);
  request.max_tokens = body.integer("max_tokens", 1, any_integer);
  const auto seed = body.integer("seed", std::numeric_limits<int64_t>::min(), any_integer);
  if (seed) request.seed = static_cast<uint64_t>(*seed);
  read_sampling(body, model.defaults, request);
  read_stops(body, request);
  read_thinking(body, out);
  read_tool_choice(body, request);
  refuse_unsupported(body);

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
