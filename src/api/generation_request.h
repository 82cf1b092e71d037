// From the common fields of a body to the engine's request: limits, stops, seed, rules.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "api/errors.h"
#include "api/generation_fields.h"
#include "api/served_model.h"
#include "engine/engine.h"

namespace tandem::api {

class ReplyIds;
class ResponseStore;

struct ChatRules {
  bool strict_model_name = false;       // 404 for a model name that is not served; else any name is accepted and echoed
  bool mask_turns_in_reasoning = true;  // turns do not end while reasoning is open (spec/frontend.md C.8 a)
  bool ignore_unsupported_schema = false;  // keywords that are not enforced are logged; else they are refused
  bool seed_from_prompt = false;           // a seed that was not given follows from the prompt; else it is random
  int64_t reasoning_hold = 0;  // tokens of a stream's reasoning that wait until it is known not to be the answer
  std::shared_ptr<ReplyIds> reply_ids = nullptr;       // of replies that may come back; null: none are kept
  std::shared_ptr<ResponseStore> responses = nullptr;  // what POST /v1/responses has answered
};

// Fills in the first served name where none was given. Throws ApiError 404 for a name that is not served, if strict.
void check_model_name(GenerationFields& fields, const ServedModel& model, const ChatRules& rules);

// 400 with the phrases and the code of D.9, which clients match to decide that they should shorten the prompt. `field`:
// where the prompt stands.
ApiError prompt_too_long(std::string_view field, size_t prompt_tokens, int64_t max_model_len);

// Ids that end the reply: the request's own and, unless ignore_eos, `turn_ends`.
std::vector<int32_t> ends_of_reply(const GenerationFields& fields, const std::vector<int32_t>& turn_ends);

// Sets everything but the parts of the prompt and the stop rule. request.prompt_ids must be there; `turn_ends` stop the
// reply unless ignore_eos. Throws ApiError 400: the prompt leaves no room (naming `field`), or allowed_token_ids holds
// nothing that min_tokens would let come.
void set_generation(const GenerationFields& fields, const ServedModel& model, const ChatRules& rules,
                    const std::vector<int32_t>& turn_ends, std::string_view field, engine::Request& request);

// The engine's request of choice k, k >= 0: choices differ in their seed and in what has a state of its own, the rules.
// `first` is the request of choice 0.
engine::Request request_of_choice(const GenerationFields& fields, const ServedModel& model,
                                  const engine::Request& first, int64_t k);

}  // namespace tandem::api
