// From the body of a chat request to what the engine runs: parse, render, tokenise, choose limits and seed. Long
// prompts take time, so this runs on a worker thread.
#pragma once

#include <string_view>
#include <vector>

#include "api/chat_request.h"
#include "api/served_model.h"
#include "engine/engine.h"

namespace tandem::api {

struct ChatRules {
  bool strict_model_name = false;  // 404 for a model name that is not served; else any name is accepted and echoed
  bool seed_from_prompt = false;   // a seed that was not given follows from the prompt; else it is random
};

struct PreparedChat {
  ChatRequest request;
  engine::Request engine_request;
  bool reasoning_open = false;  // the prompt ends inside <think>
};

// Ids that end a turn of the chat format (spec/frontend.md C.8): the model's own stop ids, <|assistant|> (a second
// answer begins) and <|system|>.
std::vector<int32_t> turn_end_ids(const ServedModel& model);

// Throws ApiError and Error(usage); prompt too long: 400 with code context_length_exceeded. Thread-safe.
PreparedChat prepare_chat(std::string_view body, const ServedModel& model, const ChatRules& rules);

}  // namespace tandem::api
