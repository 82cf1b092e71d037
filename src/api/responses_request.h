// The body of POST /v1/responses (spec/frontend.md D.6), read into the same structs as a chat.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/chat_request.h"
#include "api/responses_store.h"
#include "api/responses_tools.h"
#include "api/served_model.h"
#include "chat/messages.h"

namespace tandem::api {

struct ResponsesRequest {
  ChatRequest request;
  chat::Conversation conversation;
  ResponsesTools tools;
  size_t instructions = 0;  // messages at the front of the conversation that are not kept for the next turn
  bool store = true;

  // What the response object repeats, as JSON text in the order of D.6: the members before "output" and those between
  // "output" and "usage", each with a comma after it.
  std::string echo_before_output, echo_after_output;
};

// `previous`: the store that previous_response_id and item references are looked up in, for `client`. Throws ApiError
// 400 and Error(usage), both naming the field: wrong type, out of range, or a field that would change the reply and is
// not implemented; ApiError 404 (previous_response_not_found). Fields that nobody knows are ignored and logged once.
ResponsesRequest parse_responses_request(std::string_view body, const ServedModel& model, const ResponseStore& previous,
                                         int64_t client);

}  // namespace tandem::api
