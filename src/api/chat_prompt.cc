// Prompt, limits and seed of a chat request.
#include "api/chat_prompt.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>

#include "api/chat_dialect.h"
#include "api/errors.h"
#include "api/json_body.h"
#include "api/models.h"
#include "api/output_format.h"
#include "api/output_rules.h"
#include "api/prompt_encoder.h"
#include "chat/render.h"

namespace tandem::api {

namespace {

// Ids of the prompt and what the engine should know of their parts.
void encode_prompt(PromptEncoder& encoder, const chat::Prompt& prompt, engine::Request& request) {
  const auto tokens_before = [&encoder](size_t border) { return encoder.encode_until(border); };
  const chat::PromptBorders& borders = prompt.borders;
  const int64_t effort_begin = tokens_before(borders.effort_begin);
  const int64_t effort_end = tokens_before(borders.effort_end);
  const int64_t messages = tokens_before(borders.messages);
  const int64_t system_end = tokens_before(borders.system_end);
  const int64_t history_end = tokens_before(borders.history_end);
  const int64_t end = tokens_before(prompt.segments.size());
  request.prompt_ids = encoder.ids();

  using Kind = engine::PromptPart::Kind;
  for (const engine::PromptPart& part : {engine::PromptPart{0, effort_begin, Kind::template_text},
                                         engine::PromptPart{effort_begin, effort_end, Kind::effort},
                                         engine::PromptPart{effort_end, messages, Kind::template_text}}) {
    if (part.begin < part.end) request.prompt_parts.push_back(part);
  }
  // A prompt without tools and system message has nothing before its messages that would be worth keeping.
  if (system_end > effort_end) {
    request.keep_positions.push_back(system_end);
    request.shared_prefix = system_end;
  }
  if (history_end > system_end && history_end < end) request.keep_positions.push_back(history_end);
}

// The model sees its tools (which keeps the prefix of the prompt) and must not call them.
void forbid_calls(const text::Tokenizer& tokenizer, engine::Request& request) {
  constexpr float never = -100;  // the least that a bias may be, far beyond the differences of logits
  if (const auto id = tokenizer.added_token("<tool_call>")) request.sampling.logit_bias.emplace_back(*id, never);
}

void append_unique(std::vector<int32_t>& ids, int32_t id) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

}  // namespace

std::vector<int32_t> turn_end_ids(const ServedModel& model) {
  std::vector<int32_t> ids = model.defaults.eos_token_ids;
  for (const auto marker : {"<|assistant|>", "<|system|>"}) {
    if (const auto id = model.tokenizer->added_token(marker)) append_unique(ids, *id);
  }
  return ids;
}

namespace {

bool says(const std::optional<JsonBody>& object, std::initializer_list<std::string_view> names) {
  return object && std::any_of(names.begin(), names.end(), [&](std::string_view name) { return object->has(name); });
}

}  // namespace

void apply_preset(const ServedModel& model, const std::string& model_name, const JsonBody& body,
                  chat::Conversation& conversation) {
  const ModelPreset preset = preset_of(model, model_name);
  if (preset == ModelPreset::none || says(body, {"thinking", "reasoning_effort"}) ||
      says(body.object("reasoning"), {"effort", "enabled"}) || says(body.object("output_config"), {"effort"}) ||
      says(body.object("chat_template_kwargs"), {"enable_thinking", "thinking", "reasoning_effort"})) {
    return;
  }
  if (preset == ModelPreset::no_thinking) conversation.thinking = false;
  if (preset == ModelPreset::low_effort) conversation.effort = chat::Effort::low;
  if (preset == ModelPreset::high_effort) conversation.effort = chat::Effort::high;
}

chat::Conversation read_conversation(const JsonBody& body, std::string_view body_text, const std::string& model_name,
                                     const ServedModel& model) {
  chat::Conversation conversation = chat::parse_conversation(body_text);
  apply_preset(model, model_name, body, conversation);
  if (!body.boolean("continue_final_message").value_or(false)) return conversation;
  // The default of add_generation_prompt gives way; only a client that asks for both contradicts itself.
  if (body.boolean("add_generation_prompt").value_or(false)) {
    throw invalid_field("continue_final_message", "true excludes add_generation_prompt: true");
  }
  if (conversation.messages.back().role != chat::Role::assistant) {
    throw invalid_field("continue_final_message", "the last message is not the assistant's");
  }
  conversation.continue_final_message = true;
  conversation.add_generation_prompt = false;
  return conversation;
}

int64_t count_prompt_tokens(const chat::Conversation& conversation, const ServedModel& model) {
  return static_cast<int64_t>(model.tokenizer->encode(chat::render(conversation).segments).size());
}

namespace {

std::string joined_text(const chat::Message& message) {
  std::string text;
  for (const chat::Part& part : message.content) text += part.text;
  return text;
}

void check_tool_choice(const ChatRequest& request, const chat::Conversation& conversation) {
  if (!request.tool_required) return;
  if (conversation.tools.empty()) throw invalid_field("tool_choice", "a call is required, but no tools are offered");
  if (request.tool_named.empty() || chat::ToolSchemas(conversation.tools).offers(request.tool_named)) return;
  throw invalid_field("tool_choice", fmt::format("'{}' is not among the tools", request.tool_named.substr(0, 128)));
}

ReplyRules rules_of_reply(const ChatRequest& request, const chat::Conversation& conversation, bool reasoning_open,
                          const ServedModel& model, const ChatRules& rules) {
  check_tool_choice(request, conversation);
  const std::vector<int32_t> ends = ends_of_reply(request, turn_end_ids(model));
  const CallDemand calls{.is_offered = !conversation.tools.empty() && !request.tool_choice_none,
                         .is_required = request.tool_required,
                         .name = request.tool_named,
                         .one_call = !request.parallel_tool_calls};
  ReplyRules out;
  out.form = make_output_form({.format = request.format,
                               .tools = conversation.tools,
                               .calls = calls,
                               .reasoning_open = reasoning_open,
                               .ends = ends,
                               .ignore_unsupported = rules.ignore_unsupported_schema},
                              model);
  if (conversation.continue_final_message) out.beginning = joined_text(conversation.messages.back());
  out.reasoning_open = reasoning_open;
  out.thinking_budget = request.thinking_budget;
  if (rules.mask_turns_in_reasoning) out.masked_in_reasoning = turn_markers(model);
  return out;
}

}  // namespace

PreparedChat prepare_reply(ChatRequest the_request, const chat::Conversation& conversation, const ServedModel& model,
                           const ChatRules& rules, std::string_view field) {
  PreparedChat prepared;
  prepared.request = std::move(the_request);
  const ChatRequest& request = prepared.request;
  check_model_name(prepared.request, model, rules);

  const chat::Prompt prompt = chat::render(conversation);
  prepared.reasoning_open = prompt.reasoning_open;
  engine::Request& engine_request = prepared.engine_request;
  if (!conversation.tools.empty() && !request.tool_choice_none) {
    prepared.tools = std::make_shared<const chat::ToolSchemas>(conversation.tools);
  }
  PromptEncoder encoder(*model.tokenizer, prompt, rules.reply_ids.get(), request.cache_salt, prepared.tools);
  encode_prompt(encoder, prompt, engine_request);
  if (conversation.add_generation_prompt) {
    prepared.reply_ids = rules.reply_ids;
    prepared.prompt_key = encoder.key();
  }
  prepared.reasoning_hold = rules.reasoning_hold;
  prepared.request.rules = rules_of_reply(request, conversation, prompt.reasoning_open, model, rules);
  set_generation(request, model, rules, turn_end_ids(model), field, engine_request);
  engine_request.ends_after = stop_rule(*model.tokenizer, prompt.reasoning_open, request, prepared.tools);
  if (!conversation.tools.empty() && request.tool_choice_none) forbid_calls(*model.tokenizer, engine_request);
  return prepared;
}

PreparedChat prepare_chat(std::string_view body_text, const ServedModel& model, const ChatRules& rules) {
  const JsonBody body = JsonBody::parse(body_text);
  ChatRequest request = parse_chat_request(body, model);
  request.format = read_output_format(body, body_text);
  check_model_name(request, model, rules);
  const chat::Conversation conversation = read_conversation(body, body_text, request.model, model);
  PreparedChat prepared = prepare_reply(std::move(request), conversation, model, rules);
  if (prepared.request.echo && conversation.messages.back().role == chat::Role::assistant) {
    prepared.echo = joined_text(conversation.messages.back());
  }
  const int64_t choices = prepared.request.choices;
  const auto totals = std::make_shared<ChoiceTotals>(*model.tokenizer, choices, choices);
  prepared.dialect = make_chat_dialect(prepared.request, totals, 0);
  for (int64_t k = 1; k < choices; ++k) {
    PreparedChat& other = prepared.others.emplace_back();
    other.request = prepared.request;
    other.reasoning_open = prepared.reasoning_open;
    other.tools = prepared.tools;
    other.echo = prepared.echo;
    other.reasoning_hold = prepared.reasoning_hold;
    other.reply_ids = prepared.reply_ids;
    other.prompt_key = prepared.prompt_key;
    other.engine_request = request_of_choice(prepared.request, model, prepared.engine_request, k);
    other.engine_request.prompt_logprobs = -1;  // the first choice has them
    other.engine_request.ends_after =
        stop_rule(*model.tokenizer, prepared.reasoning_open, prepared.request, prepared.tools);
    other.dialect = make_chat_dialect(prepared.request, totals, k);
  }
  return prepared;
}

}  // namespace tandem::api
