// Fields of a responses body beside its items and tools.
#include "api/responses_request.h"

#include <fmt/core.h>

#include <array>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "api/chat_prompt.h"
#include "api/errors.h"
#include "api/field_rules.h"
#include "api/json_body.h"
#include "api/output_format.h"
#include "api/responses_items.h"
#include "base/log.h"
#include "chat/field.h"

namespace tandem::api {

namespace {

using chat::Field;

// Read here or by chat::read_switches, or allowed to be ignored by D.6.
constexpr std::array responses_fields = std::to_array<std::string_view>({
    "input",
    "instructions",
    "max_output_tokens",
    "previous_response_id",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "reasoning_effort",
    "thinking",
    "clear_thinking",
    "thinking_token_budget",
    "thinking_budget",
    "reasoning_budget",
    "thinking_budget_tokens",
    "chat_template_kwargs",
    "text",
    "include",
    "truncation",
    "background",
    "max_tool_calls",
    "prompt",
    "conversation",
    "top_logprobs",
    "client_metadata",
    "context_management",
});

void refuse_unsupported_responses_fields(const JsonBody& body) {
  if (body.boolean("background").value_or(false)) throw not_supported("background", "the value true");
  for (const auto* name : {"prompt", "conversation"}) {
    if (body.is_set(name)) throw not_supported(name, "this field");
  }
  if (body.has("prompt_logprobs")) throw not_supported("prompt_logprobs", "this field");
  if (body.integer("top_logprobs", 0, engine::most_logprobs).value_or(0) != 0) {
    throw not_supported("top_logprobs", "a number other than 0");
  }
  const std::string truncation = body.string("truncation").value_or("disabled");
  if (truncation != "disabled" && truncation != "auto") {
    throw invalid_field("truncation", "expected 'disabled' or 'auto'");
  }
  if (truncation == "auto") log(LogLevel::info, "responses request: truncation auto is taken as disabled");
}

// {"type": "function" | "custom", "name": …}
void read_named_tool(const JsonBody& choice, ChatRequest& request) {
  const std::string type = choice.string("type").value_or("");
  if (type != "function" && type != "custom") {
    throw not_supported("tool_choice", fmt::format("type '{}'", type.substr(0, 64)));
  }
  request.tool_named = choice.string("name").value_or("");
  if (request.tool_named.empty()) throw invalid_field("tool_choice.name", "missing; expected the name of a tool");
  request.tool_required = true;
}

void read_responses_tool_choice(const JsonBody& body, ChatRequest& request) {
  request.parallel_tool_calls = body.boolean("parallel_tool_calls").value_or(true);
  if (!body.has("tool_choice")) return;
  if (!body.is_string("tool_choice")) {
    read_named_tool(body.object("tool_choice").value(), request);
    return;
  }
  const std::string choice = *body.string("tool_choice");
  request.tool_choice_none = choice == "none";
  request.tool_required = choice == "required" || choice == "any";
  if (choice != "auto" && choice != "none" && !request.tool_required) {
    throw invalid_field("tool_choice", "expected 'auto', 'none', 'required' or an object");
  }
}

// {"type": "text" | "json_object"} or {"type": "json_schema", "name": …, "schema": …}
OutputFormat read_text_format(const Field& body) {
  const auto text = body.get("text");
  const auto format = text ? text->object().get("format") : std::nullopt;
  if (!format) return {};
  const Field type_field = format->object().require("type", "text, json_object or json_schema");
  const std::string& type = type_field.string();
  if (type == "text") return {};
  if (type == "json_object") return json_object_format("text.format");
  if (type != "json_schema") throw not_supported("text.format", fmt::format("type '{}'", type.substr(0, 64)));
  return json_schema_format(format->require("schema", "a JSON schema").object().value(), "text.format.schema");
}

ChatRequest read_request(const JsonBody& body, const ServedModel& model) {
  ChatRequest request;
  read_generation_fields(body, model, 1, request);
  if (request.choices != 1) throw not_supported("n", "more than one choice");
  request.include_usage = request.continuous_usage_stats = false;
  if (const auto most = body.integer("max_output_tokens", 1, any_integer)) request.max_tokens = most;
  read_thinking_budget(body, request);
  read_responses_tool_choice(body, request);
  refuse_unsupported(body);
  refuse_unsupported_responses_fields(body);
  log_unknown_fields(body, responses_fields);
  return request;
}

// `"name":value,` with the client's own value, or that of the server where the client gave none.
std::string member(const Field& body, const char* name, std::string_view otherwise = "null") {
  std::string out = fmt::format("\"{}\":", name);
  if (const auto field = body.get(name)) {
    chat::print_python_json(field->value(), out);
  } else {
    out += otherwise;
  }
  return out += ',';
}

std::string json_string(std::string_view text) {
  std::string out;
  chat::print_python_json(text, out);
  return out;
}

std::string reasoning_member(const Field& body) {
  const auto reasoning = body.get("reasoning");
  const auto effort = reasoning ? reasoning->get("effort") : std::nullopt;
  return fmt::format(R"("reasoning":{{"effort":{},"summary":null}},)", effort ? json_string(effort->string()) : "null");
}

void set_echo(const Field& body, ResponsesRequest& out) {
  const ChatRequest& request = out.request;
  out.echo_before_output = member(body, "instructions") + member(body, "max_output_tokens");
  std::string& after = out.echo_after_output;
  after = fmt::format(R"("parallel_tool_calls":{},)", request.parallel_tool_calls);
  const auto previous = body.get("previous_response_id");
  after += fmt::format(R"("previous_response_id":{},)",
                       previous && !previous->string().empty() ? json_string(previous->string()) : "null");
  after += reasoning_member(body);
  after += fmt::format(R"("store":{},"temperature":{},)", out.store, request.sampling.temperature);
  after += member(body, "text", R"({"format":{"type":"text"}})");
  after += member(body, "tool_choice", R"("auto")");
  after += member(body, "tools", "[]");
  after += fmt::format(R"("top_p":{},"truncation":"disabled",)", request.sampling.top_p);
}

// The conversation that the input goes on from.
void continue_from(const JsonBody& body, const ResponseStore& previous, int64_t client, chat::Conversation& out) {
  const auto id = body.string("previous_response_id");
  if (!id || id->empty()) return;  // clients without a notion of null send ""
  const auto found = previous.find(*id, client);
  if (!found) {
    throw ApiError(404, "not_found_error", "previous_response_id: no response with this id is kept",
                   "previous_response_id", "previous_response_not_found");
  }
  out.messages.insert(out.messages.end(), found->messages.begin(), found->messages.end());
}

}  // namespace

ResponsesRequest parse_responses_request(std::string_view text, const ServedModel& model, const ResponseStore& previous,
                                         int64_t client) {
  const JsonBody body = JsonBody::parse(text);
  const chat::JsonValue root = chat::parse_json(text, "body");
  const Field fields(root, "");
  ResponsesRequest out;
  out.request = read_request(body, model);
  out.request.format = read_text_format(fields);
  out.store = body.boolean("store").value_or(true);
  (void)body.object("metadata");
  chat::read_switches(fields, out.conversation);
  out.conversation.add_generation_prompt = true;
  apply_preset(model, out.request.model, body, out.conversation);
  out.tools = read_responses_tools(fields);
  out.conversation.tools = out.tools.definitions;

  std::vector<chat::Message>& messages = out.conversation.messages;
  if (const std::string instructions = body.string("instructions").value_or(""); !instructions.empty()) {
    chat::Message& message = messages.emplace_back();
    message.role = chat::Role::system;
    message.content.push_back({chat::Part::Kind::text, instructions, {}});
  }
  out.instructions = messages.size();
  continue_from(body, previous, client, out.conversation);
  const Field input = fields.require("input", "a string or a list of items");
  std::vector<chat::Message> added =
      read_response_items(input, [&](std::string_view id) { return previous.find_item(id, client); });
  messages.insert(messages.end(), std::make_move_iterator(added.begin()), std::make_move_iterator(added.end()));
  set_echo(fields, out);
  out.echo_after_output += member(fields, "metadata", "{}");
  return out;
}

}  // namespace tandem::api
