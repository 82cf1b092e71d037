// What the engine is told beside the prompt.
#include "api/generation_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "api/models.h"
#include "api/random.h"
#include "api/token_lists.h"
#include "engine/rule_list.h"

namespace tandem::api {

namespace {

// A rule has a state, so each choice has its own.
std::shared_ptr<engine::TokenRule> make_rule(const GenerationFields& fields, const ServedModel& model) {
  std::shared_ptr<engine::TokenRule> lists;
  if (!fields.allowed_token_ids.empty() || !fields.bad_words.empty()) {
    lists = std::make_shared<TokenLists>(fields.allowed_token_ids, word_tokens(*model.tokenizer, fields.bad_words),
                                         model.vocab_size);
  }
  return engine::RuleList::of({lists, make_reply_rule(fields.rules, model)});
}

// What is known before the first token; contradictions further on end the request with an error (no_token_left).
void check_first_token(const GenerationFields& fields, const ServedModel& model, const engine::Request& request) {
  if (request.rule == nullptr || !request.rule->masks()) return;
  std::vector<uint32_t> bits((static_cast<size_t>(model.vocab_size) + 31) / 32, ~uint32_t{0});
  request.rule->mask(bits);
  const auto forbid = [&](int64_t id) { bits[static_cast<size_t>(id) / 32] &= ~(uint32_t{1} << (id % 32)); };
  for (int64_t id = model.tokenizer->size(); id < std::ssize(bits) * 32; ++id) forbid(id);
  if (request.min_tokens > 0) std::for_each(request.stop_token_ids.begin(), request.stop_token_ids.end(), forbid);
  if (std::any_of(bits.begin(), bits.end(), [](uint32_t word) { return word != 0; })) return;
  const char* field = !fields.allowed_token_ids.empty() ? "allowed_token_ids"
                      : !fields.bad_words.empty()       ? "bad_words"
                                                        : "min_tokens";
  throw invalid_field(field,
                      "together with the form that is asked for it leaves no token that the reply could begin with");
}

void check_allowed(const GenerationFields& fields, const ServedModel& model, const engine::Request& request) {
  if (fields.allowed_token_ids.empty()) return;
  const auto may_come = [&](int32_t id) {
    const auto& stops = request.stop_token_ids;
    return id < model.tokenizer->size() &&
           (request.min_tokens == 0 || std::find(stops.begin(), stops.end(), id) == stops.end());
  };
  if (std::none_of(fields.allowed_token_ids.begin(), fields.allowed_token_ids.end(), may_come)) {
    throw invalid_field("allowed_token_ids", request.min_tokens == 0
                                                 ? "holds no id that has a text"
                                                 : "holds nothing but stop tokens, which min_tokens forbids");
  }
}

}  // namespace

void check_model_name(GenerationFields& fields, const ServedModel& model, const ChatRules& rules) {
  if (fields.model.empty()) {
    fields.model = model.names.front();
  } else if (rules.strict_model_name && !is_served(model, fields.model)) {
    throw model_not_found(fields.model);
  }
}

// A prompt has to leave room for one token of reply, so the longest is one short of the window.
ApiError prompt_too_long(std::string_view field, size_t prompt_tokens, int64_t max_model_len) {
  return {400, "invalid_request_error",
          fmt::format("This model's maximum context length is {0} tokens. However, your request has {1} input tokens "
                      "and the reply needs at least one (prompt is too long: {1} tokens > {2} maximum).",
                      max_model_len, prompt_tokens, max_model_len - 1),
          std::string(field), "context_length_exceeded"};
}

std::vector<int32_t> ends_of_reply(const GenerationFields& fields, const std::vector<int32_t>& turn_ends) {
  std::vector<int32_t> stops = fields.stop_token_ids;
  for (const int32_t id : turn_ends) {
    if (!fields.ignore_eos && std::find(stops.begin(), stops.end(), id) == stops.end()) stops.push_back(id);
  }
  return stops;
}

void set_generation(const GenerationFields& fields, const ServedModel& model, const ChatRules& rules,
                    const std::vector<int32_t>& turn_ends, std::string_view field, engine::Request& request) {
  const size_t prompt_tokens = request.prompt_ids.size();
  const int64_t room = model.max_model_len - static_cast<int64_t>(prompt_tokens);
  if (room < 1) throw prompt_too_long(field, prompt_tokens, model.max_model_len);
  request.cache_salt = fields.cache_salt;
  request.max_tokens = std::clamp<int64_t>(fields.max_tokens.value_or(room), 1, room);
  request.min_tokens = std::min(fields.min_tokens, request.max_tokens);
  request.stop_token_ids = ends_of_reply(fields, turn_ends);
  request.drafter = fields.drafter;
  request.logprobs = fields.logprobs;
  request.prompt_logprobs = fields.prompt_logprobs;
  request.priority = fields.priority;
  request.sampling = fields.sampling;
  request.sampling.seed = fields.seed              ? *fields.seed
                          : rules.seed_from_prompt ? seed_of_prompt(request.prompt_ids)
                                                   : random_seed();
  check_allowed(fields, model, request);
  request.rule = make_rule(fields, model);
  check_first_token(fields, model, request);
  request.repetition = fields.repetition;
}

engine::Request request_of_choice(const GenerationFields& fields, const ServedModel& model,
                                  const engine::Request& first, int64_t k) {
  engine::Request request = first;
  request.sampling.seed += static_cast<uint64_t>(k);
  request.rule = make_rule(fields, model);
  return request;
}

}  // namespace tandem::api
