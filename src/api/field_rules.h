// Fields of the OpenAI dialects that this version refuses, and the log of fields that nobody knows (spec/frontend.md
// D.2). A field that would change the reply is never ignored silently.
#pragma once

#include <span>
#include <string_view>

#include "api/json_body.h"

namespace tandem::api {

// Throws ApiError 400 (code unsupported_parameter, naming the field) for what no dialect implements: constraints,
// samplers, prompt log-probabilities, token ids in the reply. Neutral values pass.
void refuse_unsupported(const JsonBody& body);

// Logs names that are neither refused nor ignored by D.2 nor in `dialect_fields`, once a name.
void log_unknown_fields(const JsonBody& body, std::span<const std::string_view> dialect_fields);

}  // namespace tandem::api
