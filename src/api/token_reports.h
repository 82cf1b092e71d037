// Log-probabilities as the dialects write them (spec/frontend.md D.4, D.5). Values are the engine's: of the model's own
// logits, before penalties, masks and temperature.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "engine/engine.h"
#include "text/tokenizer.h"

namespace tandem::api {

// One token of the reply with its report.
struct TokenReport {
  int32_t id = 0;
  engine::TokenLogprobs logprobs;
  bool has_logprobs = true;  // false: the first token of all
  bool is_shown = true;      // false: not in the text
};

// One token of a prompt with its report; the first one has none.
struct PromptReport {
  int32_t id = 0;
  engine::TokenLogprobs logprobs;
};

struct ReportFormat {
  const text::Tokenizer* tokenizer = nullptr;  // must outlive this
  bool tokens_as_ids = false;                  // tokens are printed as "token_id:17"
};

// {"content":[{"token","logprob","bytes","top_logprobs":[{"token","logprob","bytes"}]}]}; null without reports. `bytes`
// are the token's own, maybe a part of a character, which `token` shows as U+FFFD.
nlohmann::ordered_json chat_logprobs(const ReportFormat& format, std::span<const TokenReport> reports);

// {"tokens","token_logprobs","top_logprobs":[{token: logprob}],"text_offset"}; null without reports. `offset`: the
// place of the first token in the text of the choice, in characters (Unicode code points, as the tokens are printed);
// it is moved behind the last. A token that is none of the best is added to them, as in OpenAI's API; of different
// tokens with the same text the likeliest is shown.
nlohmann::ordered_json completion_logprobs(const ReportFormat& format, std::span<const TokenReport> reports,
                                           int64_t& offset);

// [null, {"id": {"logprob", "rank", "decoded_token"}}, ...]: an entry for each token of the prompt, with the token
// itself and the likeliest ones. `reports`: of the second token on.
nlohmann::ordered_json prompt_logprobs_json(const ReportFormat& format, std::span<const PromptReport> reports);

}  // namespace tandem::api
