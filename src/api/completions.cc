// Fields of a completion, and its prompts in four forms.
#include "api/completions.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "api/completion_dialect.h"
#include "api/errors.h"
#include "api/field_rules.h"
#include "api/json_body.h"
#include "api/output_format.h"
#include "api/output_rules.h"
#include "api/raw_prompt.h"

namespace tandem::api {

namespace {

constexpr int64_t default_max_tokens = 16;  // OpenAI's
constexpr std::array completion_fields =
    std::to_array<std::string_view>({"prompt", "suffix", "max_completion_tokens", "use_beam_search"});

constexpr int64_t special_beginning = 2;  // [gMASK]<sop>

struct RawPrompt {
  std::vector<int32_t> ids;
  std::string text;           // as the client gave it; of ids their text
  int64_t hidden_tokens = 0;  // at the front of ids, not in the text
};

ChatRequest parse_completion_request(const JsonBody& body, const ServedModel& model) {
  ChatRequest request;
  request.echo = body.boolean("echo").value_or(false);
  read_generation_fields(body, model, request.echo ? 0 : 1, request);
  if (!request.max_tokens && !body.has("n_predict")) request.max_tokens = default_max_tokens;
  if (const auto logprobs = body.integer("logprobs", 0, engine::most_logprobs)) {
    request.logprobs = static_cast<int32_t>(*logprobs);
  }
  if (!body.string("suffix").value_or("").empty()) throw not_supported("suffix", "text after the reply");
  refuse_unsupported(body);
  log_unknown_fields(body, completion_fields);
  return request;
}

std::vector<RawPrompt> read_prompts(const JsonBody& body, const ServedModel& model) {
  using ListOf = JsonBody::ListOf;
  const text::Tokenizer& tokenizer = *model.tokenizer;
  const bool add_special = body.boolean("add_special_tokens").value_or(true);
  const auto of_text = [&](const std::string& text) {
    RawPrompt prompt{encode_raw_prompt(tokenizer, text, add_special), text};
    const auto first = tokenizer.added_token("[gMASK]");
    const bool was_added = first && !prompt.ids.empty() && prompt.ids[0] == *first && !text.starts_with("[gMASK]");
    if (was_added) prompt.hidden_tokens = special_beginning;
    return prompt;
  };
  const auto of_ids = [&](const std::vector<int64_t>& list) {
    const std::vector<int32_t> ids(list.begin(), list.end());
    return RawPrompt{ids, tokenizer.decode(ids), 0};
  };
  const int64_t last_id = model.vocab_size - 1;
  std::vector<RawPrompt> prompts;
  if (body.is_string("prompt")) return {of_text(*body.string("prompt"))};
  const auto kind = body.list_of("prompt");
  if (!kind)
    throw invalid_field("prompt", "expected a string, a list of strings, token ids or a list of lists of them");
  switch (*kind) {
    case ListOf::nothing: throw invalid_field("prompt", "found an empty list; expected at least one prompt");
    case ListOf::integers: prompts.push_back(of_ids(*body.integers("prompt", 0, last_id))); break;
    case ListOf::lists: {
      const auto lists = *body.integer_lists("prompt", 0, last_id);
      for (const auto& list : lists) prompts.push_back(of_ids(list));
      break;
    }
    case ListOf::strings:
    case ListOf::others:  // refused by the reader, which names the entry
      for (const std::string& text : body.strings("prompt", false).value_or(std::vector<std::string>{})) {
        prompts.push_back(of_text(text));
      }
  }
  return prompts;
}

}  // namespace

PreparedChat prepare_completion(std::string_view body_text, const ServedModel& model, const ChatRules& rules) {
  const JsonBody body = JsonBody::parse(body_text);
  ChatRequest request = parse_completion_request(body, model);
  check_model_name(request, model, rules);
  request.format = read_output_format(body, body_text);
  const std::vector<int32_t> ends = ends_of_reply(request, model.defaults.eos_token_ids);
  request.rules.form = make_output_form({.format = request.format,
                                         .tools = {},
                                         .calls = {},
                                         .reasoning_open = false,
                                         .ends = ends,
                                         .ignore_unsupported = rules.ignore_unsupported_schema},
                                        model);
  const std::vector<RawPrompt> prompts = read_prompts(body, model);
  const int64_t choices = std::ssize(prompts) * request.choices;
  if (choices > most_choices) {
    throw invalid_field("prompt", fmt::format("{} prompts with {} choices each; expected at most {} choices in all",
                                              prompts.size(), request.choices, most_choices));
  }
  const auto totals = std::make_shared<ChoiceTotals>(*model.tokenizer, choices, request.choices);
  std::vector<PreparedChat> all;
  for (const RawPrompt& prompt : prompts) {
    if (prompt.ids.empty()) throw invalid_field("prompt", "an empty prompt; expected at least one token");
    engine::Request first;
    first.prompt_ids = prompt.ids;
    set_generation(request, model, rules, model.defaults.eos_token_ids, "prompt", first);
    if (request.echo) first.prompt_logprobs = std::max(first.prompt_logprobs, request.logprobs);
    for (int64_t k = 0; k < request.choices; ++k) {
      PreparedChat& prepared = all.emplace_back();
      prepared.request = request;
      prepared.engine_request = request_of_choice(request, model, first, k);
      prepared.engine_request.ends_after = raw_stop_rule(*model.tokenizer, request);
      prepared.is_raw = true;
      if (request.echo) prepared.echo = prompt.text;
      std::optional<EchoedPrompt> echoed;
      if (request.echo) echoed = EchoedPrompt{prompt.text, prompt.ids.front(), prompt.hidden_tokens};
      prepared.dialect = make_completion_dialect(request, totals, std::ssize(all) - 1, std::move(echoed));
    }
  }
  PreparedChat result = std::move(all.front());
  for (size_t i = 1; i < all.size(); ++i) result.others.push_back(std::move(all[i]));
  return result;
}

}  // namespace tandem::api
