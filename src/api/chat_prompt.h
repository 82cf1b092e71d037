// From the body of a chat request to what the engine runs: parse, render, tokenise, choose limits and seed. Long
// prompts take time, so this runs on a worker thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/chat_request.h"
#include "api/generation_request.h"
#include "api/json_body.h"
#include "api/reply_dialect.h"
#include "api/reply_ids.h"
#include "api/reply_text.h"
#include "api/served_model.h"
#include "chat/messages.h"
#include "engine/engine.h"

namespace tandem::api {

struct PreparedChat {
  ChatRequest request;
  engine::Request engine_request;
  bool reasoning_open = false;  // the prompt ends inside <think>
  Tools tools;                  // null: the reply's calls are not parsed
  std::shared_ptr<ReplyDialect> dialect;
  bool is_raw = false;         // a completion: its text is not parsed
  std::string echo;            // what the reply begins with
  int64_t reasoning_hold = 0;  // ChatRules::reasoning_hold
  // Where the ids of the reply are kept for the prompt that it will be a part of; null: nowhere.
  std::shared_ptr<ReplyIds> reply_ids;
  PromptKey prompt_key;
  std::vector<PreparedChat> others;  // the other choices of the same reply, whose dialects share one ChoiceTotals
};

// Ids that end a turn of the chat format (spec/frontend.md C.8): the model's own stop ids, <|assistant|> (a second
// answer begins) and <|system|>.
std::vector<int32_t> turn_end_ids(const ServedModel& model);

// The messages and switches of a body, with the preset of the model's name and continue_final_message applied. `body`
// is the parsed body_text. Throws ApiError 400 and Error(usage). Thread-safe.
chat::Conversation read_conversation(const JsonBody& body, std::string_view body_text, const std::string& model_name,
                                     const ServedModel& model);

// The preset of the model's name (D.14) counts where the body itself says nothing about thinking and effort.
void apply_preset(const ServedModel& model, const std::string& model_name, const JsonBody& body,
                  chat::Conversation& conversation);

// Of a request that has been read in whatever dialect, which the caller still has to set. Throws ApiError and
// Error(usage); prompt too long: 400 with code context_length_exceeded, naming `field`. Thread-safe.
PreparedChat prepare_reply(ChatRequest request, const chat::Conversation& conversation, const ServedModel& model,
                           const ChatRules& rules, std::string_view field = "messages");

// The tokens of the prompt. Throws Error(usage). Thread-safe.
int64_t count_prompt_tokens(const chat::Conversation& conversation, const ServedModel& model);

// The body of POST /v1/chat/completions; throws likewise. Thread-safe.
PreparedChat prepare_chat(std::string_view body, const ServedModel& model, const ChatRules& rules);

}  // namespace tandem::api
