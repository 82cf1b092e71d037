// POST /tokenize, /detokenize and /apply-template (spec/frontend.md D.8): JSON in, JSON out, no engine.
#pragma once

#include <string>
#include <string_view>

#include "api/generation_request.h"
#include "api/served_model.h"

namespace tandem::api {

// All take time linear in the body, so they belong on a worker. They throw ApiError and Error(usage). Thread-safe.

// vLLM's body, {"prompt"} or {"messages"} -> {"count","max_model_len","tokens","token_strs"}, or llama-server's,
// {"content"} -> {"tokens"}.
std::string tokenize(std::string_view body, const ServedModel& model, const ChatRules& rules);
// {"tokens"} -> {"prompt","content"}, vLLM's and llama-server's names of the same text; special tokens are shown.
std::string detokenize(std::string_view body, const ServedModel& model, const ChatRules& rules);
// The body of a chat -> {"prompt"}, the text that the model would see.
std::string apply_template(std::string_view body, const ServedModel& model, const ChatRules& rules);

}  // namespace tandem::api
