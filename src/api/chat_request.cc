// Chat fields: which are read, which are refused, which may be ignored.
#include "api/chat_request.h"

#include <fmt/core.h>

#include <array>
#include <limits>
#include <string_view>

#include "api/errors.h"
#include "api/field_rules.h"

namespace tandem::api {

namespace {

constexpr std::array thinking_budgets = std::to_array<std::string_view>(
    {"thinking_token_budget", "thinking_budget", "reasoning_budget", "thinking_budget_tokens"});

// Fields of chats alone: read here or by chat::parse_conversation, or allowed to be ignored by D.2.
constexpr std::array chat_fields = std::to_array<std::string_view>({
    "messages",
    "max_completion_tokens",
    "include_reasoning",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "clear_thinking",
    "thinking_token_budget",
    "thinking_budget",
    "reasoning_budget",
    "thinking_budget_tokens",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "modalities",
    "documents",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "verbosity",
    "web_search_options",
    "prediction",
});

void refuse_unsupported_chat_fields(const JsonBody& body) {
  for (const auto name : {"functions", "chat_template"}) {
    if (body.is_set(name)) throw not_supported(name, "this field");
  }
  if (body.boolean("add_special_tokens").value_or(false)) throw not_supported("add_special_tokens", "the value true");
}

// {"type":"function","function":{"name"}}, {"type":"function","name"} (Responses) or, as function_call, {"name"}.
void read_named_tool(const JsonBody& body, std::string_view field, ChatRequest& request) {
  const auto choice = body.object(field);  // neither a string nor an object: wrong type
  const std::string type = choice->string("type").value_or("function");
  if (type == "allowed_tools") throw not_supported(field, "type 'allowed_tools'");
  if (type != "function") throw invalid_field(fmt::format("{}.type", field), "expected 'function'");
  const auto function = choice->object("function");
  const auto name = function ? function->string("name") : choice->string("name");
  if (!name || name->empty())
    throw invalid_field(fmt::format("{}.function.name", field), "missing; expected the name of a tool");
  request.tool_required = true;
  request.tool_named = *name;
}

void read_chat_tool_choice(const JsonBody& body, ChatRequest& request) {
  request.parallel_tool_calls = body.boolean("parallel_tool_calls").value_or(true);
  for (const auto name : {"tool_choice", "function_call"}) {
    if (!body.has(name)) continue;
    if (!body.is_string(name)) {
      read_named_tool(body, name, request);
      continue;
    }
    const std::string choice = body.string(name).value_or("");
    request.tool_choice_none = request.tool_choice_none || choice == "none";
    request.tool_required = request.tool_required || choice == "required" || choice == "any";
    if (choice == "auto" || choice == "none" || choice == "required" || choice == "any") continue;
    throw invalid_field(name, fmt::format("found '{}'; expected 'auto', 'none', 'required' or an object", choice));
  }
  if (request.tool_choice_none && request.tool_required)
    throw invalid_field("function_call", "contradicts tool_choice");
}

void check_modalities(const JsonBody& body) {
  for (const std::string& modality : body.strings("modalities", false).value_or(std::vector<std::string>{})) {
    if (modality != "text") throw not_supported("modalities", fmt::format("'{}'", modality));
  }
}

// OpenRouter's object; effort and enabled shape the prompt and are read with it.
void read_reasoning_object(const JsonBody& body, ChatRequest& request) {
  const auto reasoning = body.object("reasoning");
  if (!reasoning) return;
  if (reasoning->boolean("exclude").value_or(false)) request.include_reasoning = false;
}

void read_logprobs(const JsonBody& body, ChatRequest& request) {
  const bool wanted = body.boolean("logprobs").value_or(false);
  const int64_t most = body.integer("top_logprobs", 0, engine::most_logprobs).value_or(0);
  if (most > 0 && !wanted) throw invalid_field("top_logprobs", "needs logprobs: true");
  if (wanted) request.logprobs = static_cast<int32_t>(most);
}

}  // namespace

void read_thinking_budget(const JsonBody& body, ChatRequest& request) {
  for (const auto name : thinking_budgets) {
    const auto budget = body.integer(name, -1, any_integer);
    if (budget && request.thinking_budget < 0) request.thinking_budget = *budget;
  }
  const auto reasoning = body.object("reasoning");
  if (!reasoning) return;
  const auto budget = reasoning->integer("max_tokens", -1, any_integer);
  if (budget && request.thinking_budget < 0) request.thinking_budget = *budget;
}

ChatRequest parse_chat_request(const JsonBody& body, const ServedModel& model) {
  ChatRequest request;
  read_generation_fields(body, model, 1, request);
  request.include_reasoning = body.boolean("include_reasoning").value_or(true);
  read_thinking_budget(body, request);
  read_reasoning_object(body, request);
  read_chat_tool_choice(body, request);
  read_logprobs(body, request);
  request.echo = body.boolean("echo").value_or(false);
  refuse_unsupported(body);
  refuse_unsupported_chat_fields(body);
  check_modalities(body);
  log_unknown_fields(body, chat_fields);
  return request;
}

}  // namespace tandem::api
