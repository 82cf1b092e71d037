// Types, ranges and defaults of the common fields.
#include "api/generation_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "api/errors.h"
#include "base/error.h"

namespace tandem::api {

namespace {

constexpr size_t max_stop_strings = 64, max_stop_bytes = 64 * 1024;
constexpr size_t max_bad_words = 1024, max_bad_words_bytes = 64 * 1024;
constexpr size_t max_model_name = 256;  // it is repeated in every chunk
constexpr size_t max_cache_salt = 1024;
constexpr double largest_bias = 100;  // clamped to it (D.2)

// Below this temperature the reply is greedy; from there up to min_temperature it is raised (D.2).
constexpr double greedy_temperature = 1e-5, min_temperature = 0.01;

// Steps look through such lists, so they must not be longer than the vocabulary.
std::vector<int32_t> sorted_ids(const JsonBody& body, std::string_view name, const ServedModel& model) {
  std::vector<int32_t> ids;
  for (const int64_t id : body.integers(name, 0, model.vocab_size - 1).value_or(std::vector<int64_t>{})) {
    ids.push_back(static_cast<int32_t>(id));
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::vector<std::string> bounded_strings(const JsonBody& body, std::string_view name, bool or_single, size_t most,
                                         size_t most_bytes) {
  auto strings = body.strings(name, or_single).value_or(std::vector<std::string>{});
  if (strings.size() > most) {
    throw invalid_field(name, fmt::format("{} entries; expected at most {}", strings.size(), most));
  }
  size_t bytes = 0;
  for (size_t i = 0; i < strings.size(); ++i) {
    if (strings[i].empty()) throw invalid_field(name, fmt::format("entry {} is empty", i));
    bytes += strings[i].size();
  }
  if (bytes > most_bytes) {
    throw invalid_field(name, fmt::format("{} bytes in all; expected at most {}", bytes, most_bytes));
  }
  return strings;
}

void read_stream(const JsonBody& body, GenerationFields& fields) {
  fields.stream = body.boolean("stream").value_or(false);
  if (const auto options = body.object("stream_options")) {
    fields.include_usage = options->boolean("include_usage").value_or(false);
    fields.continuous_usage_stats = options->boolean("continuous_usage_stats").value_or(false);
  }
  fields.stream_interval = body.integer("stream_interval", 1, any_integer).value_or(1);
}

void read_choices(const JsonBody& body, GenerationFields& fields) {
  fields.choices = body.integer("n", 1, most_choices).value_or(1);
  if (body.integer("best_of", 1, most_choices).value_or(1) != 1) {
    throw not_supported("best_of", "choosing the best of several replies");
  }
}

void read_sampling(const JsonBody& body, const GenerationDefaults& defaults, GenerationFields& fields) {
  auto& sampling = fields.sampling;
  sampling.temperature = body.number("temperature", 0, 2).value_or(defaults.temperature);
  if (sampling.temperature >= greedy_temperature) {
    sampling.temperature = std::max(sampling.temperature, min_temperature);
  }
  sampling.top_p = body.number("top_p", 0, 1).value_or(defaults.top_p);
  if (sampling.top_p <= 0) throw invalid_field("top_p", "0 is out of range; expected more than 0, at most 1");
  const int64_t top_k = body.integer("top_k", -1, std::numeric_limits<int32_t>::max()).value_or(defaults.top_k);
  sampling.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  sampling.min_p = body.number("min_p", 0, 1).value_or(defaults.min_p);
  const auto seed = body.integer("seed", std::numeric_limits<int64_t>::min(), any_integer);
  if (seed && *seed != -1) fields.seed = static_cast<uint64_t>(*seed);
}

void read_shaping(const JsonBody& body, const ServedModel& model, GenerationFields& fields) {
  auto& sampling = fields.sampling;
  sampling.repetition_penalty = body.number("repetition_penalty", 1e-6, 1e6).value_or(1);  // the engine's bounds
  sampling.presence_penalty = body.number("presence_penalty", -2, 2).value_or(0);
  sampling.frequency_penalty = body.number("frequency_penalty", -2, 2).value_or(0);
  if (const auto biases = body.numbers_by_integer("logit_bias", 0, model.vocab_size - 1)) {
    for (const auto& [id, bias] : *biases) {
      sampling.logit_bias.emplace_back(static_cast<int32_t>(id),
                                       static_cast<float>(std::clamp(bias, -largest_bias, largest_bias)));
    }
  }
  fields.allowed_token_ids = sorted_ids(body, "allowed_token_ids", model);
  if (body.has("allowed_token_ids") && fields.allowed_token_ids.empty()) {
    throw invalid_field("allowed_token_ids", "found an empty list; expected at least one id");
  }
  fields.bad_words = bounded_strings(body, "bad_words", false, max_bad_words, max_bad_words_bytes);
}

void read_lengths(const JsonBody& body, int64_t fewest_tokens, GenerationFields& fields) {
  std::string_view name = "max_completion_tokens";
  for (const auto alias : {"max_completion_tokens", "max_tokens", "n_predict"}) {
    // Every alias is checked, the first one given counts. n_predict -1 is llama-server's "no limit".
    const bool unlimited = alias == std::string_view("n_predict") && body.integer(alias, -1, any_integer) == -1;
    const auto value = unlimited ? std::nullopt : body.integer(alias, fewest_tokens, any_integer);
    if (value && !fields.max_tokens) {
      fields.max_tokens = value;
      name = alias;
    }
  }
  fields.min_tokens = body.integer("min_tokens", 0, any_integer).value_or(0);
  if (fields.max_tokens && fields.min_tokens > *fields.max_tokens) {
    throw invalid_field("min_tokens",
                        fmt::format("{} is more than {} = {}", fields.min_tokens, name, *fields.max_tokens));
  }
}

void read_stops(const JsonBody& body, const ServedModel& model, GenerationFields& fields) {
  fields.stop = read_stop_strings(body, "stop", true);
  fields.stop_token_ids = sorted_ids(body, "stop_token_ids", model);
  fields.include_stop_str_in_output = body.boolean("include_stop_str_in_output").value_or(false);
  fields.ignore_eos = body.boolean("ignore_eos").value_or(false);
}

void read_cache_salt(const JsonBody& body, GenerationFields& fields) {
  if (!body.has("cache_salt")) return;
  fields.cache_salt = *body.string("cache_salt");
  const size_t size = fields.cache_salt.size();
  if (size == 0 || size > max_cache_salt) {
    throw invalid_field("cache_salt", fmt::format("{} bytes; expected 1 to {}", size, max_cache_salt));
  }
}

void read_repetition(const JsonBody& body, GenerationFields& fields) {
  const auto given = body.object("repetition_detection");
  if (!given) return;
  engine::RepetitionLimit& limit = fields.repetition;
  limit.max_size = given->integer("max_pattern_size", 0, engine::most_pattern_size).value_or(0);
  limit.min_size = given->integer("min_pattern_size", 0, engine::most_pattern_size).value_or(1);
  limit.min_size = std::max<int64_t>(limit.min_size, 1);
  limit.min_count = given->integer("min_count", 0, engine::most_pattern_count).value_or(2);
  if (!limit.is_on()) return;
  if (limit.min_size > limit.max_size) {
    throw invalid_field("repetition_detection.min_pattern_size",
                        fmt::format("{} is more than max_pattern_size = {}", limit.min_size, limit.max_size));
  }
  if (limit.min_count < 2) throw invalid_field("repetition_detection.min_count", "expected at least 2");
}

// Whether the drafter that is asked for is loaded is the engine's to say.
void read_drafter(const JsonBody& body, GenerationFields& fields) {
  if (const auto name = body.string("drafter")) {
    try {
      fields.drafter = draft::parse_choice(*name, "drafter");
    } catch (const Error& error) {
      throw invalid_field("drafter", fmt::format("found {}; expected {}", error.found(), error.expected()));
    }
  }
  const auto draft = body.boolean("draft");
  if (!draft) return;
  if (fields.drafter && *draft == (*fields.drafter == draft::Choice::none)) {
    throw invalid_field("draft", fmt::format("{} contradicts drafter '{}'", *draft, draft::name_of(*fields.drafter)));
  }
  if (!*draft) fields.drafter = draft::Choice::none;
}

void read_priority(const JsonBody& body, GenerationFields& fields) {
  constexpr int64_t most = engine::background_priority - 1;
  if (!body.is_string("priority")) {
    const auto given = body.integer("priority", std::numeric_limits<int64_t>::min(), any_integer);
    fields.priority = std::clamp(given.value_or(0), -most, most);
    return;
  }
  const std::string priority = *body.string("priority");
  if (priority != "background" && priority != "batch") {
    throw invalid_field("priority", "found another text; expected an integer, 'background' or 'batch'");
  }
  fields.priority = engine::background_priority;
}

void read_prompt_logprobs(const JsonBody& body, GenerationFields& fields) {
  const auto most = body.integer("prompt_logprobs", -1, engine::most_logprobs);
  if (!most) return;
  if (*most < 0) throw not_supported("prompt_logprobs", "-1, the whole vocabulary,");
  if (fields.stream && *most > 0) throw invalid_field("prompt_logprobs", "a stream has no place for them");
  if (!fields.stream) fields.prompt_logprobs = static_cast<int32_t>(*most);
}

}  // namespace

std::vector<std::string> read_stop_strings(const JsonBody& body, std::string_view name, bool or_single) {
  return bounded_strings(body, name, or_single, max_stop_strings, max_stop_bytes);
}

void read_generation_fields(const JsonBody& body, const ServedModel& model, int64_t fewest_tokens,
                            GenerationFields& fields) {
  fields.model = body.string("model").value_or("");
  if (fields.model.size() > max_model_name) {
    throw invalid_field("model", fmt::format("{} bytes; expected at most {}", fields.model.size(), max_model_name));
  }
  read_stream(body, fields);
  read_choices(body, fields);
  read_sampling(body, model.defaults, fields);
  read_shaping(body, model, fields);
  read_lengths(body, fewest_tokens, fields);
  read_stops(body, model, fields);
  read_cache_salt(body, fields);
  read_repetition(body, fields);
  read_drafter(body, fields);
  read_priority(body, fields);
  read_prompt_logprobs(body, fields);
  fields.tokens_as_ids = body.boolean("return_tokens_as_token_ids").value_or(false);
}

}  // namespace tandem::api
