// Chat replies as JSON text, keys in the order of D.4.
#include "api/chat_reply.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "api/json_text.h"

namespace tandem::api {

using Json = nlohmann::ordered_json;

namespace {

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

Json openai_usage_json(const Usage& usage) {
  Json json;
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["prompt_tokens_details"]["cached_tokens"] = usage.cached_tokens;
  Json& details = json["completion_tokens_details"];
  details["reasoning_tokens"] = usage.reasoning_tokens;
  if (usage.drafts) {
    details["accepted_prediction_tokens"] = usage.drafts->accepted;
    details["rejected_prediction_tokens"] = usage.drafts->drafted - usage.drafts->accepted;
  }
  return json;
}

namespace {

// Three decimals: milliseconds measured by a clock of microseconds.
Json rounded(const std::optional<double>& value) {
  return value ? Json(std::round(*value * 1000) / 1000) : Json(nullptr);
}

Json quotient(int64_t dividend, int64_t divisor) {
  if (divisor == 0) return nullptr;
  return rounded(static_cast<double>(dividend) / static_cast<double>(divisor));
}

// vLLM's names. Every step that had the pending token as a row counts, with drafts or without, so that the mean is
// tokens a step (spec/speculation.md 6.1), and what a step yielded is what it emitted, the stop token included.
Json drafts_json(const engine::DraftStats& drafts) {
  const auto& tried = drafts.drafted_at;
  const auto most = static_cast<size_t>(std::find(tried.begin(), tried.end(), 0) - tried.begin());
  Json histogram = Json::array();
  int64_t tokens = 0;
  for (size_t n = 1; n <= most + 1; ++n) {
    histogram.push_back(drafts.tokens_of_step[n]);
    tokens += static_cast<int64_t>(n) * drafts.tokens_of_step[n];
  }
  Json json;
  json["mean_acceptance_length"] = quotient(tokens, drafts.steps);
  json["draft_acceptance_rate"] = quotient(drafts.accepted, drafts.drafted);
  json["acceptance_histogram"] = std::move(histogram);
  json["num_spec_steps"] = drafts.steps;
  json["num_accepted_draft_tokens"] = drafts.accepted;
  json["num_draft_tokens"] = drafts.drafted;
  json["num_spec_tokens"] = most;
  return json;
}

}  // namespace

Json metrics_json(const Metrics& metrics) {
  Json json;
  json["time_to_first_token_ms"] = rounded(metrics.time_to_first_token_ms);
  json["generation_time_ms"] = rounded(metrics.generation_time_ms);
  json["queue_time_ms"] = rounded(metrics.queue_time_ms);
  json["mean_itl_ms"] = rounded(metrics.mean_itl_ms);
  json["tokens_per_second"] = rounded(metrics.tokens_per_second);
  json["speculative_decoding"] = drafts_json(metrics.drafts);
  json["seed"] = metrics.seed;
  return json;
}

Json stop_reason_json(const StopReason& reason) {
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  if (const auto* id = std::get_if<int32_t>(&reason)) return *id;
  return nullptr;
}

namespace {

Json chunk_json(const ReplyHead& head, Json choices, ChunkUsage usage) {
  Json json;
  json["id"] = head.id;
  json["object"] = "chat.completion.chunk";
  json["created"] = head.created;
  json["model"] = head.model;
  json["choices"] = std::move(choices);
  if (usage.usage) {
    json["usage"] = openai_usage_json(*usage.usage);
  } else if (usage.usage_null) {
    json["usage"] = nullptr;
  }
  json["system_fingerprint"] = nullptr;
  return json;
}

Json choice_json(const ReplyHead& head, Json delta, std::span<const TokenReport> reports = {}) {
  Json choice;
  choice["index"] = head.index;
  choice["delta"] = std::move(delta);
  choice["logprobs"] = chat_logprobs(head.reports, reports);
  choice["finish_reason"] = nullptr;
  return choice;
}

void add_ending(Json& choice, const Ending& ending) {
  choice["finish_reason"] = ending.finish_reason;
  choice["stop_reason"] = stop_reason_json(ending.stop_reason);
  if (ending.reasoning_closed_by_eos) choice["reasoning_closed_by"] = "eos";
}

}  // namespace

std::string first_chunk(const ReplyHead& head, ChunkUsage usage) {
  Json delta;
  delta["role"] = "assistant";
  delta["content"] = "";
  return text_of(chunk_json(head, Json::array({choice_json(head, std::move(delta))}), usage));
}

std::string delta_chunk(const ReplyHead& head, chat::ReplyPiece::Kind kind, std::string_view text, ChunkUsage usage,
                        std::span<const TokenReport> reports) {
  Json delta;
  if (kind == chat::ReplyPiece::Kind::reasoning) {
    // Servers differ in the name of this field and clients read one of the two (D.4).
    delta["reasoning"] = text;
    delta["reasoning_content"] = text;
  } else {
    delta["content"] = text;
  }
  return text_of(chunk_json(head, Json::array({choice_json(head, std::move(delta), reports)}), usage));
}

namespace {

std::string call_delta(const ReplyHead& head, Json call, ChunkUsage usage) {
  Json delta;
  delta["tool_calls"] = Json::array({std::move(call)});
  return text_of(chunk_json(head, Json::array({choice_json(head, std::move(delta))}), usage));
}

Json function_json(std::string_view name, std::string_view arguments) {
  Json function;
  function["name"] = name;
  function["arguments"] = arguments;
  return function;
}

}  // namespace

std::string call_chunk(const ReplyHead& head, int64_t index, std::string_view id, std::string_view name,
                       ChunkUsage usage) {
  Json call;
  call["index"] = index;
  call["id"] = id;
  call["type"] = "function";
  call["function"] = function_json(name, "");
  return call_delta(head, std::move(call), usage);
}

std::string arguments_chunk(const ReplyHead& head, int64_t index, std::string_view text, ChunkUsage usage) {
  Json call;
  call["index"] = index;
  call["function"]["arguments"] = text;
  return call_delta(head, std::move(call), usage);
}

std::string final_chunk(const ReplyHead& head, const Ending& ending, const Metrics& metrics, ChunkUsage usage,
                        std::span<const TokenReport> reports) {
  Json choice = choice_json(head, Json::object(), reports);
  add_ending(choice, ending);
  Json json = chunk_json(head, Json::array({std::move(choice)}), usage);
  json["metrics"] = metrics_json(metrics);
  return text_of(json);
}

std::string usage_chunk(const ReplyHead& head, const Usage& usage) {
  return text_of(chunk_json(head, Json::array(), {&usage, false}));
}

std::string full_reply(const ReplyHead& head, const ReplyMessage& reply, const Ending& ending, const Usage& usage,
                       const Metrics& metrics, std::span<const TokenReport> reports,
                       const std::vector<PromptReport>* prompt) {
  Json message;
  message["role"] = "assistant";
  message["content"] = or_null(reply.content);
  message["refusal"] = nullptr;
  message["annotations"] = nullptr;
  message["audio"] = nullptr;
  message["function_call"] = nullptr;
  for (const chat::ToolCall& call : reply.calls) {
    Json json;
    json["id"] = call.id;
    json["type"] = "function";
    json["function"] = function_json(call.name, call.arguments);
    message["tool_calls"].push_back(std::move(json));
  }
  message["reasoning"] = or_null(reply.reasoning);
  message["reasoning_content"] = or_null(reply.reasoning);

  Json choice;
  choice["index"] = head.index;
  choice["message"] = std::move(message);
  choice["logprobs"] = chat_logprobs(head.reports, reports);
  add_ending(choice, ending);

  Json json;
  json["id"] = head.id;
  json["object"] = "chat.completion";
  json["created"] = head.created;
  json["model"] = head.model;
  json["choices"] = Json::array({std::move(choice)});
  json["usage"] = openai_usage_json(usage);
  json["system_fingerprint"] = nullptr;
  json["service_tier"] = nullptr;
  json["prompt_logprobs"] = prompt ? prompt_logprobs_json(head.reports, *prompt) : Json(nullptr);
  json["metrics"] = metrics_json(metrics);
  return text_of(json);
}

}  // namespace tandem::api
