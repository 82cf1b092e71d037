// Prompt, limits and seed of a chat request.
#include "api/chat_prompt.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <utility>

#include "api/chat_dialect.h"
#include "api/errors.h"
#include "api/json_body.h"
#include "api/random.h"
#include "chat/render.h"

namespace tandem::api {

namespace {

void check_model_name(ChatRequest& request, const ServedModel& model, bool strict) {
  if (request.model.empty()) {
    request.model = model.names.front();
    return;
  }
  const bool served = std::find(model.names.begin(), model.names.end(), request.model) != model.names.end();
  if (strict && !served) {
    throw ApiError(404, "not_found_error", fmt::format("The model '{}' does not exist.", request.model), "model",
                   "model_not_found");
  }
}

// Phrases and code of D.9, which clients match to decide that they should shorten the conversation. A prompt has to
// leave room for one token of reply, so the longest is one short of the window.
ApiError prompt_too_long(size_t prompt_tokens, int64_t max_model_len) {
  return {400, "invalid_request_error",
          fmt::format("This model's maximum context length is {0} tokens. However, your request has {1} input tokens "
                      "and the reply needs at least one (prompt is too long: {1} tokens > {2} maximum).",
                      max_model_len, prompt_tokens, max_model_len - 1),
          "messages", "context_length_exceeded"};
}

// Ids of the prompt and what the engine should know of their parts. Segments between two borders are encoded by
// themselves, which gives the ids of the whole (chat/render.h).
void encode_prompt(const text::Tokenizer& tokenizer, const chat::Prompt& prompt, engine::Request& request) {
  std::vector<int32_t>& ids = request.prompt_ids;
  size_t encoded = 0;
  const auto tokens_before = [&](size_t border) {
    const auto segments = std::span(prompt.segments).subspan(encoded, border - encoded);
    const std::vector<int32_t> more = tokenizer.encode(segments);
    ids.insert(ids.end(), more.begin(), more.end());
    encoded = border;
    return static_cast<int64_t>(ids.size());
  };
  const chat::PromptBorders& borders = prompt.borders;
  const int64_t effort_begin = tokens_before(borders.effort_begin);
  const int64_t effort_end = tokens_before(borders.effort_end);
  const int64_t messages = tokens_before(borders.messages);
  const int64_t system_end = tokens_before(borders.system_end);
  const int64_t history_end = tokens_before(borders.history_end);
  const int64_t end = tokens_before(prompt.segments.size());

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

int64_t count_prompt_tokens(const chat::Conversation& conversation, const ServedModel& model) {
  return static_cast<int64_t>(model.tokenizer->encode(chat::render(conversation).segments).size());
}

PreparedChat prepare_reply(ChatRequest the_request, const chat::Conversation& conversation, const ServedModel& model,
                           const ChatRules& rules) {
  PreparedChat prepared;
  prepared.request = std::move(the_request);
  const ChatRequest& request = prepared.request;
  check_model_name(prepared.request, model, rules.strict_model_name);

  const chat::Prompt prompt = chat::render(conversation);
  prepared.reasoning_open = prompt.reasoning_open;
  engine::Request& engine_request = prepared.engine_request;
  encode_prompt(*model.tokenizer, prompt, engine_request);
  engine_request.cache_salt = request.cache_salt;
  const auto prompt_tokens = static_cast<int64_t>(engine_request.prompt_ids.size());
  const int64_t room = model.max_model_len - prompt_tokens;
  if (room < 1) throw prompt_too_long(engine_request.prompt_ids.size(), model.max_model_len);

  engine_request.max_tokens = std::min(request.max_tokens.value_or(room), room);
  engine_request.min_tokens = std::min(request.min_tokens, engine_request.max_tokens);
  engine_request.stop_token_ids = request.stop_token_ids;
  if (!request.ignore_eos) {
    for (const int32_t id : turn_end_ids(model)) append_unique(engine_request.stop_token_ids, id);
  }
  engine_request.drafter = request.drafter;
  if (!conversation.tools.empty() && !request.tool_choice_none) {
    prepared.tools = std::make_shared<const chat::ToolSchemas>(conversation.tools);
  }
  engine_request.ends_after = stop_rule(*model.tokenizer, prompt.reasoning_open, request, prepared.tools);
  engine_request.sampling = request.sampling;
  if (!conversation.tools.empty() && request.tool_choice_none) forbid_calls(*model.tokenizer, engine_request);
  engine_request.sampling.seed = request.seed             ? *request.seed
                                 : rules.seed_from_prompt ? seed_of_prompt(engine_request.prompt_ids)
                                                          : random_seed();
  return prepared;
}

PreparedChat prepare_chat(std::string_view body_text, const ServedModel& model, const ChatRules& rules) {
  const JsonBody body = JsonBody::parse(body_text);
  ChatRequest request = parse_chat_request(body, model);
  PreparedChat prepared = prepare_reply(std::move(request), chat::parse_conversation(body_text), model, rules);
  prepared.dialect = make_chat_dialect(prepared.request);
  return prepared;
}

}  // namespace tandem::api
