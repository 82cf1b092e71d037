// What the OpenAI dialects ask of a reply in the same words: lengths, sampling, stops, choices, caching
// (spec/frontend.md D.2, D.5). The prompt and what is reported beside the text are the dialect's own.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/json_body.h"
#include "api/output_rules.h"
#include "api/served_model.h"
#include "draft/proposal.h"
#include "engine/engine.h"

namespace tandem::api {

inline constexpr int64_t any_integer = std::numeric_limits<int64_t>::max();
inline constexpr int64_t most_choices = 128;

struct GenerationFields {
  std::string model;  // as the client named it; empty: not given
  bool stream = false;
  bool include_usage = false;           // stream_options, ignored unless streaming
  bool continuous_usage_stats = false;  // likewise
  int64_t stream_interval = 1;          // tokens of one streamed chunk; the first and the last do not wait
  int64_t choices = 1;                  // `n`, 1 to most_choices
  engine::SamplingParams sampling;      // its seed is set from `seed` when the prompt is known
  std::optional<uint64_t> seed;
  std::vector<int32_t> allowed_token_ids;  // empty: all; else sorted, without repetitions
  std::vector<std::string> bad_words;      // none empty
  std::optional<int64_t> max_tokens;       // max_completion_tokens, else max_tokens, else n_predict
  int64_t min_tokens = 0;
  std::vector<std::string> stop;  // none empty, at most 64
  std::vector<int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  int64_t priority = 0;          // engine::Request::priority
  int32_t prompt_logprobs = -1;  // likewise; never of a stream
  int32_t logprobs = -1;  // most likely tokens to report beside each token, 0 to engine::most_logprobs; −1: no report
  bool tokens_as_ids = false;            // return_tokens_as_token_ids: reports print tokens as "token_id:17"
  std::string cache_salt;                // kept prefixes are shared among requests of one salt
  engine::RepetitionLimit repetition;    // repetition_detection
  ReplyRules rules;                      // set when the prompt is known
  std::optional<draft::Choice> drafter;  // `drafter`, or none by `draft`: false; else the server's default
};

// Strings that end a reply: at most 64 of at most 64 KiB in all, none empty. A single string counts as a list of one
// when `or_single`. Throws ApiError 400 naming the field.
std::vector<std::string> read_stop_strings(const JsonBody& body, std::string_view name, bool or_single);

// Reads all of them but `logprobs`, whose form is the dialect's. `fewest_tokens`: the smallest max_tokens that is not
// out of range. Throws ApiError 400 naming the field.
void read_generation_fields(const JsonBody& body, const ServedModel& model, int64_t fewest_tokens,
                            GenerationFields& fields);

}  // namespace tandem::api
