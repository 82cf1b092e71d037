// JSON of chat replies and stream chunks (spec/frontend.md D.4). Pure functions: what to say is decided in
// chat_dialect.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "api/token_reports.h"
#include "chat/messages.h"
#include "chat/reply_piece.h"
#include "engine/engine.h"

namespace tandem::api {

// What all chunks of one choice share.
struct ReplyHead {
  std::string id;       // "chatcmpl-" and 32 hexadecimal digits; the same in all choices, as created and model
  int64_t created = 0;  // Unix time, seconds
  std::string model;
  ReportFormat reports;
  int64_t index = 0;  // of the choice
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // reasoning, markup and the final stop token included
  int64_t cached_tokens = 0;      // prompt tokens that were not computed again
  int64_t reasoning_tokens = 0;
  std::optional<engine::DraftStats> drafts;  // known when the reply has ended
};

// Measured at the front end. Empty: nothing was measured (no token, or only one).
struct Metrics {
  uint64_t seed = 0;                             // the seed that was used, given or not
  std::optional<double> queue_time_ms;           // submitted to the engine -> admitted
  std::optional<double> time_to_first_token_ms;  // request read -> first token
  std::optional<double> generation_time_ms;      // first token -> last token
  std::optional<double> mean_itl_ms;             // generation time over the gaps between tokens
  std::optional<double> tokens_per_second;       // gaps between tokens over generation time
  engine::DraftStats drafts;                     // the engine's
};

// monostate: null; a stop string; the id of a stop token other than the model's own.
using StopReason = std::variant<std::monostate, std::string, int32_t>;

struct Ending {
  std::string finish_reason;  // "stop", "length", "tool_calls"
  StopReason stop_reason;
  bool reasoning_closed_by_eos = false;  // C.8: the reasoning was never closed and was delivered as content
  bool ended_in_reasoning = false;       // cut off before the reasoning closed
};

// `usage`: null pointer leaves the key out; with `usage_null` the key is there with the value null (include_usage).
struct ChunkUsage {
  const Usage* usage = nullptr;
  bool usage_null = false;
};

std::string first_chunk(const ReplyHead& head, ChunkUsage usage);
// kind: reasoning or content.
// `reports`: of the tokens since the chunk before.
std::string delta_chunk(const ReplyHead& head, chat::ReplyPiece::Kind kind, std::string_view text, ChunkUsage usage,
                        std::span<const TokenReport> reports = {});
// The beginning of tool call number `index`, and a piece of its arguments.
std::string call_chunk(const ReplyHead& head, int64_t index, std::string_view id, std::string_view name,
                       ChunkUsage usage);
std::string arguments_chunk(const ReplyHead& head, int64_t index, std::string_view text, ChunkUsage usage);
std::string final_chunk(const ReplyHead& head, const Ending& ending, const Metrics& metrics, ChunkUsage usage,
                        std::span<const TokenReport> reports = {});
std::string usage_chunk(const ReplyHead& head, const Usage& usage);

struct ReplyMessage {
  std::optional<std::string> content, reasoning;  // empty: null
  std::vector<chat::ToolCall> calls;              // none: the key is left out
};

// The non-streaming reply. `prompt`: null unless prompt_logprobs were asked for.
std::string full_reply(const ReplyHead& head, const ReplyMessage& message, const Ending& ending, const Usage& usage,
                       const Metrics& metrics, std::span<const TokenReport> reports = {},
                       const std::vector<PromptReport>* prompt = nullptr);

// The parts that other dialects of OpenAI have in the same form.
nlohmann::ordered_json openai_usage_json(const Usage& usage);
nlohmann::ordered_json metrics_json(const Metrics& metrics);
nlohmann::ordered_json stop_reason_json(const StopReason& reason);

}  // namespace tandem::api
