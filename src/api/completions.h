// POST /v1/completions (spec/frontend.md D.5): prompts that are no chats, replies that are not parsed.
#pragma once

#include <string>
#include <string_view>

#include "api/chat_prompt.h"
#include "api/served_model.h"

namespace tandem::api {

// The choices of all prompts in the order of their index, prompt · n + k; they share their totals. Throws ApiError and
// Error(usage); prompt too long: 400 with code context_length_exceeded. Thread-safe.
PreparedChat prepare_completion(std::string_view body, const ServedModel& model, const ChatRules& rules);

}  // namespace tandem::api
