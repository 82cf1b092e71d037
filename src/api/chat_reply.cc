// Chat replies as JSON text, keys in the order of D.4.
#include "api/chat_reply.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace tandem::api {

using Json = nlohmann::ordered_json;

namespace {

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json usage_json(const Usage& usage) {
  Json json;
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["prompt_tokens_details"]["cached_tokens"] = usage.cached_tokens;
  json["completion_tokens_details"]["reasoning_tokens"] = usage.reasoning_tokens;
  return json;
}

// Three decimals: milliseconds measured by a clock of microseconds.
Json rounded(const std::optional<double>& value) {
  return value ? Json(std::round(*value * 1000) / 1000) : Json(nullptr);
}

Json metrics_json(const Metrics& metrics) {
  Json json;
  json["time_to_first_token_ms"] = rounded(metrics.time_to_first_token_ms);
  json["generation_time_ms"] = rounded(metrics.generation_time_ms);
  json["queue_time_ms"] = rounded(metrics.queue_time_ms);
  json["mean_itl_ms"] = rounded(metrics.mean_itl_ms);
  json["tokens_per_second"] = rounded(metrics.tokens_per_second);
  json["seed"] = metrics.seed;
  return json;
}

Json stop_reason_json(const StopReason& reason) {
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  if (const auto* id = std::get_if<int32_t>(&reason)) return *id;
  return nullptr;
}

Json chunk_json(const ReplyHead& head, Json choices, ChunkUsage usage) {
  Json json;
  json["id"] = head.id;
  json["object"] = "chat.completion.chunk";
  json["created"] = head.created;
  json["model"] = head.model;
  json["choices"] = std::move(choices);
  if (usage.usage) {
    json["usage"] = usage_json(*usage.usage);
  } else if (usage.usage_null) {
    json["usage"] = nullptr;
  }
  json["system_fingerprint"] = nullptr;
  return json;
}

Json choice_json(Json delta, const Json& finish_reason) {
  Json choice;
  choice["index"] = 0;
  choice["delta"] = std::move(delta);
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_reason;
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
  return text_of(chunk_json(head, Json::array({choice_json(std::move(delta), nullptr)}), usage));
}

std::string delta_chunk(const ReplyHead& head, chat::ReplyPiece::Kind kind, std::string_view text, ChunkUsage usage) {
  Json delta;
  if (kind == chat::ReplyPiece::Kind::reasoning) {
    // Servers differ in the name of this field and clients read one of the two (D.4).
    delta["reasoning"] = text;
    delta["reasoning_content"] = text;
  } else {
    delta["content"] = text;
  }
  return text_of(chunk_json(head, Json::array({choice_json(std::move(delta), nullptr)}), usage));
}

std::string final_chunk(const ReplyHead& head, const Ending& ending, const Metrics& metrics, ChunkUsage usage) {
  Json choice = choice_json(Json::object(), nullptr);
  add_ending(choice, ending);
  Json json = chunk_json(head, Json::array({std::move(choice)}), usage);
  json["metrics"] = metrics_json(metrics);
  return text_of(json);
}

std::string usage_chunk(const ReplyHead& head, const Usage& usage) {
  return text_of(chunk_json(head, Json::array(), {&usage, false}));
}

std::string full_reply(const ReplyHead& head, const std::optional<std::string>& content,
                       const std::optional<std::string>& reasoning, const Ending& ending, const Usage& usage,
                       const Metrics& metrics) {
  Json message;
  message["role"] = "assistant";
  message["content"] = or_null(content);
  message["refusal"] = nullptr;
  message["annotations"] = nullptr;
  message["audio"] = nullptr;
  message["function_call"] = nullptr;
  message["reasoning"] = or_null(reasoning);
  message["reasoning_content"] = or_null(reasoning);

  Json choice;
  choice["index"] = 0;
  choice["message"] = std::move(message);
  choice["logprobs"] = nullptr;
  add_ending(choice, ending);

  Json json;
  json["id"] = head.id;
  json["object"] = "chat.completion";
  json["created"] = head.created;
  json["model"] = head.model;
  json["choices"] = Json::array({std::move(choice)});
  json["usage"] = usage_json(usage);
  json["system_fingerprint"] = nullptr;
  json["service_tier"] = nullptr;
  json["prompt_logprobs"] = nullptr;
  json["metrics"] = metrics_json(metrics);
  return text_of(json);
}

}  // namespace tandem::api
