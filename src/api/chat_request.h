// The fields of POST /v1/chat/completions beyond the prompt (spec/frontend.md D.2). Fields that shape the prompt are
// read by chat::parse_conversation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/json_body.h"
#include "api/served_model.h"
#include "draft/proposal.h"
#include "engine/engine.h"

namespace tandem::api {

struct ChatRequest {
  std::string model;  // as the client named it; empty: not given
  bool stream = false;
  bool include_usage = false;           // stream_options, ignored unless streaming
  bool continuous_usage_stats = false;  // likewise
  engine::SamplingParams sampling;      // its seed is set from `seed` when the prompt is known
  std::optional<uint64_t> seed;
  std::optional<int64_t> max_tokens;  // max_completion_tokens, else max_tokens, else n_predict
  int64_t min_tokens = 0;
  std::vector<std::string> stop;  // none empty, at most 64
  std::vector<int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool include_reasoning = true;
  bool tool_choice_none = false;         // tools are shown to the model, its reply has no calls
  bool parallel_tool_calls = true;       // false: the reply ends with its first call
  std::string cache_salt;                // kept prefixes are shared among requests of one salt
  std::optional<draft::Choice> drafter;  // `drafter`, or none by `draft`: false; else the server's default
};

// Throws ApiError 400 naming the field: wrong type, out of range, or a field of D.2 that would change the reply and is
// not implemented (code unsupported_parameter). Fields that nobody knows are ignored and logged once a name.
ChatRequest parse_chat_request(const JsonBody& body, const ServedModel& model);

}  // namespace tandem::api
