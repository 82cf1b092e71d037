// The fields of POST /v1/chat/completions beyond the prompt (spec/frontend.md D.2). Fields that shape the prompt are
// read by chat::parse_conversation.
#pragma once

#include <cstdint>
#include <string>

#include "api/generation_fields.h"
#include "api/json_body.h"
#include "api/output_format.h"
#include "api/served_model.h"

namespace tandem::api {

struct ChatRequest : GenerationFields {
  bool include_reasoning = true;
  bool tool_choice_none = false;    // tools are shown to the model, its reply has no calls
  bool tool_required = false;       // the reply has at least one call
  std::string tool_named;           // the tool that it has to call; empty: any. Sets tool_required
  OutputFormat format;              // of the content
  int64_t thinking_budget = -1;     // tokens of reasoning; −1: any number
  bool parallel_tool_calls = true;  // false: the reply ends with its first call
  bool echo = false;                // the reply begins with the content of the last message if that is an assistant's
};

// Throws ApiError 400 naming the field: wrong type, out of range, or a field of D.2 that would change the reply and is
// not implemented (code unsupported_parameter). Fields that nobody knows are ignored and logged once a name.
ChatRequest parse_chat_request(const JsonBody& body, const ServedModel& model);

// thinking_token_budget, its other names and reasoning.max_tokens. Every one is checked, the first one given counts.
void read_thinking_budget(const JsonBody& body, ChatRequest& request);

}  // namespace tandem::api
