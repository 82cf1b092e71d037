// Replies of POST /v1/responses (spec/frontend.md D.6).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "api/chat_prompt.h"
#include "api/reply_dialect.h"
#include "api/responses_request.h"
#include "api/responses_store.h"

namespace tandem::api {

// The response that `request` will get. It is put into `store` when it ends, for `client`, unless the request says
// store: false. `model`: the name that the reply shows.
std::shared_ptr<ReplyDialect> make_responses_dialect(ResponsesRequest request, std::string model,
                                                     std::shared_ptr<ResponseStore> store, int64_t client);

// From the body to what the engine runs; rules.responses must be there. Throws as prepare_reply() and
// parse_responses_request(). Thread-safe.
PreparedChat prepare_responses(std::string_view body, const ServedModel& model, const ChatRules& rules, int64_t client);

// What ends a response that a client cancels (POST /v1/responses/{id}/cancel).
ApiError response_cancelled();

}  // namespace tandem::api
