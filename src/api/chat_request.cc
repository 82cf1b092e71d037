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

constexpr int64_t any_integer = std::numeric_limits<int64_t>::max();

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
  for (const auto name : thinking_budgets) {
    if (body.integer(name, -1, any_integer).value_or(-1) != -1) throw not_supported(name, "a thinking budget");
  }
}

void read_tool_choice(const JsonBody& body, ChatRequest& request) {
  request.parallel_tool_calls = body.boolean("parallel_tool_calls").value_or(true);
  for (const auto name : {"tool_choice", "function_call"}) {
    if (!body.has(name)) continue;
    if (!body.is_string(name)) {
      (void)body.object(name);  // neither a string nor an object: wrong type
      throw not_supported(name, "a named tool");
    }
    const std::string choice = body.string(name).value_or("");
    request.tool_choice_none = request.tool_choice_none || choice == "none";
    if (choice == "auto" || choice == "none") continue;
    if (choice == "required" || choice == "any") throw not_supported(name, fmt::format("'{}'", choice));
    throw invalid_field(name, fmt::format("found '{}'; expected 'auto', 'none', 'required' or an object", choice));
  }
}

void check_formats(const JsonBody& body) {
  if (const auto format = body.object("response_format")) {
    const auto type = format->string("type");
    if (!type) throw invalid_field("response_format.type", "missing; expected 'text'");
    if (*type != "text") throw not_supported("response_format", fmt::format("type '{}'", *type));
  }
  for (const std::string& modality : body.strings("modalities", false).value_or(std::vector<std::string>{})) {
    if (modality != "text") throw not_supported("modalities", fmt::format("'{}'", modality));
  }
}

// OpenRouter's object; effort and enabled shape the prompt and are read with it.
void read_reasoning_object(const JsonBody& body, ChatRequest& request) {
  const auto reasoning = body.object("reasoning");
  if (!reasoning) return;
  if (reasoning->boolean("exclude").value_or(false)) request.include_reasoning = false;
  if (reasoning->has("max_tokens")) throw not_supported("reasoning.max_tokens", "a thinking budget");
}

void read_logprobs(const JsonBody& body, ChatRequest& request) {
  const bool wanted = body.boolean("logprobs").value_or(false);
  const int64_t most = body.integer("top_logprobs", 0, engine::most_logprobs).value_or(0);
  if (most > 0 && !wanted) throw invalid_field("top_logprobs", "needs logprobs: true");
  if (wanted) request.logprobs = static_cast<int32_t>(most);
}

}  // namespace

ChatRequest parse_chat_request(const JsonBody& body, const ServedModel& model) {
  ChatRequest request;
  read_generation_fields(body, model, 1, request);
  request.include_reasoning = body.boolean("include_reasoning").value_or(true);
  read_reasoning_object(body, request);
  read_tool_choice(body, request);
  read_logprobs(body, request);
  request.echo = body.boolean("echo").value_or(false);
  refuse_unsupported(body);
  refuse_unsupported_chat_fields(body);
  check_formats(body);
  log_unknown_fields(body, chat_fields);
  return request;
}

}  // namespace tandem::api
