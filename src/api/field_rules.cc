// Lists of names: one place for what is refused in every dialect and what may be ignored in every dialect.
#include "api/field_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <set>
#include <string>

#include "api/errors.h"
#include "base/log.h"

namespace tandem::api {

namespace {

// Fields that would change the reply and are refused unless they are null, false, zero or empty.
constexpr std::array refused_unless_empty = std::to_array<std::string_view>({
    "guided_whitespace_pattern",
    "audio",
    "logprob_token_ids",
    "samplers",
    "mirostat",
    "dry_multiplier",
    "xtc_probability",
    "t_max_predict_ms",
});

// Fields that are refused whenever they are not null, because every value of them asks for something.
constexpr std::array refused_unless_null = std::to_array<std::string_view>({"truncate_prompt_tokens"});

// Booleans that are refused when true.
constexpr std::array refused_when_true = std::to_array<std::string_view>({
    "use_beam_search",
    "return_token_ids",
    "return_prompt_text",
});

struct NeutralNumber {
  std::string_view name;
  double neutral, low, high;
};
// Numbers that are refused unless neutral, with the range in which they mean something.
constexpr double no_bound = std::numeric_limits<double>::max();
constexpr std::array refused_unless_neutral = std::to_array<NeutralNumber>({
    {"typical_p", 1, 0, no_bound},
    {"tfs", 1, 0, no_bound},
    {"tfs_z", 1, 0, no_bound},
});

// Read by every dialect, or allowed to be ignored by D.2.
constexpr std::array known_fields = std::to_array<std::string_view>({
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "n_predict",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "n",
    "best_of",
    "logprobs",
    "echo",
    "return_tokens_as_token_ids",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "json_schema",
    "regex",
    "ebnf",
    "repetition_detection",
    "skip_special_tokens",
    "add_special_tokens",
    "length_penalty",
    "spaces_between_special_tokens",
    "truncation_side",
    "guided_decoding_backend",
    "priority",
    "prompt_logprobs",
    "cache_salt",
    "request_id",
    "session_id",
    "metadata",
    "user",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "kv_transfer_params",
    "vllm_xargs",
    "ec_transfer_params",
    "stream_interval",
    "draft",
    "drafter",
    "cache_prompt",
    "id_slot",
    "mirostat_tau",
    "mirostat_eta",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "xtc_threshold",
});

bool contains(std::span<const std::string_view> list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool is_known(std::string_view name) {
  return contains(known_fields, name) || contains(refused_unless_empty, name) || contains(refused_unless_null, name) ||
         contains(refused_when_true, name) ||
         std::any_of(refused_unless_neutral.begin(), refused_unless_neutral.end(),
                     [name](const NeutralNumber& field) { return field.name == name; });
}

}  // namespace

void refuse_unsupported(const JsonBody& body) {
  for (const auto name : refused_unless_empty) {
    if (body.is_set(name)) throw not_supported(name, "this field");
  }
  for (const auto name : refused_unless_null) {
    if (body.has(name)) throw not_supported(name, "this field");
  }
  for (const auto name : refused_when_true) {
    if (body.boolean(name).value_or(false)) throw not_supported(name, "the value true");
  }
  for (const auto& field : refused_unless_neutral) {
    const auto value = body.number(field.name, field.low, field.high);
    if (value && *value != field.neutral) {
      throw not_supported(field.name, fmt::format("a value other than {}", field.neutral));
    }
  }
  if (!body.boolean("skip_special_tokens").value_or(true))
    throw not_supported("skip_special_tokens", "the value false");
}

// Clients may send anything, so the list of names already logged is bounded.
void log_unknown_fields(const JsonBody& body, std::span<const std::string_view> dialect_fields) {
  static std::mutex mutex;
  static std::set<std::string> logged;
  constexpr size_t max_logged = 256, max_length = 64;
  for (const std::string& name : body.names()) {
    const bool printable = std::all_of(name.begin(), name.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
    if (is_known(name) || contains(dialect_fields, name) || name.size() > max_length || !printable) continue;
    const std::lock_guard lock(mutex);
    if (logged.size() < max_logged && logged.insert(name).second) {
      log(LogLevel::warning, "request: unknown field '{}' ignored (logged once)", name);
    }
  }
}

}  // namespace tandem::api
