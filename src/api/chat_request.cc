// Chat fields: which are read, which are refused, which may be ignored.
#include "api/chat_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <set>
#include <string_view>

#include "api/errors.h"
#include "base/error.h"
#include "base/log.h"

namespace tandem::api {

namespace {

constexpr size_t max_stop_strings = 64, max_stop_bytes = 64 * 1024;
constexpr size_t max_model_name = 256;  // it is repeated in every chunk
constexpr size_t max_cache_salt = 1024;
constexpr int64_t any_integer = std::numeric_limits<int64_t>::max();

// Below this temperature the reply is greedy; from there up to min_temperature it is raised (D.2).
constexpr double greedy_temperature = 1e-5, min_temperature = 0.01;

// Fields that would change the reply and are refused unless they are null, false, zero or empty.
constexpr std::array refused_unless_empty = std::to_array<std::string_view>({
    "logit_bias",
    "bad_words",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_whitespace_pattern",
    "grammar",
    "json_schema",
    "regex",
    "ebnf",
    "functions",
    "chat_template",
    "audio",
    "repetition_detection",
    "top_logprobs",
    "logprob_token_ids",
    "samplers",
    "mirostat",
    "dry_multiplier",
    "xtc_probability",
    "t_max_predict_ms",
});

// Fields that are refused whenever they are not null, because every value of them asks for something.
constexpr std::array refused_unless_null =
    std::to_array<std::string_view>({"allowed_token_ids", "prompt_logprobs", "truncate_prompt_tokens"});

// Booleans that are refused when true.
constexpr std::array refused_when_true = std::to_array<std::string_view>({
    "logprobs",
    "use_beam_search",
    "echo",
    "continue_final_message",
    "return_token_ids",
    "return_prompt_text",
    "return_tokens_as_token_ids",
    "add_special_tokens",
});

struct NeutralNumber {
  std::string_view name;
  double neutral, low, high;
};
// Numbers that are refused unless neutral, with the range in which they mean something.
constexpr double no_bound = std::numeric_limits<double>::max();
constexpr std::array refused_unless_neutral = std::to_array<NeutralNumber>({
    {"presence_penalty", 0, -2, 2},
    {"frequency_penalty", 0, -2, 2},
    {"repetition_penalty", 1, std::numeric_limits<double>::min(), no_bound},
    {"typical_p", 1, 0, no_bound},
    {"tfs", 1, 0, no_bound},
    {"tfs_z", 1, 0, no_bound},
});

constexpr std::array thinking_budgets = std::to_array<std::string_view>(
    {"thinking_token_budget", "thinking_budget", "reasoning_budget", "thinking_budget_tokens"});

// Read here or by chat::parse_conversation, or allowed to be ignored by D.2; none of them is logged.
constexpr std::array known_fields = std::to_array<std::string_view>({
    "messages",
    "model",
    "stream",
    "stream_options",
    "max_completion_tokens",
    "max_tokens",
    "n_predict",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "include_reasoning",
    "n",
    "best_of",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "clear_thinking",
    "chat_template_kwargs",
    "add_generation_prompt",
    "skip_special_tokens",
    "function_call",
    "modalities",
    "length_penalty",
    "spaces_between_special_tokens",
    "truncation_side",
    "guided_decoding_backend",
    "documents",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "priority",
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
    "verbosity",
    "web_search_options",
    "prediction",
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

bool is_known(std::string_view name) {
  const auto contains = [name](const auto& list) { return std::find(list.begin(), list.end(), name) != list.end(); };
  return contains(known_fields) || contains(refused_unless_empty) || contains(refused_unless_null) ||
         contains(refused_when_true) || contains(thinking_budgets) ||
         std::any_of(refused_unless_neutral.begin(), refused_unless_neutral.end(),
                     [name](const NeutralNumber& field) { return field.name == name; });
}

// Clients may send anything, so the list of names already logged is bounded.
void log_unknown_fields(const JsonBody& body) {
  static std::mutex mutex;
  static std::set<std::string> logged;
  constexpr size_t max_logged = 256, max_length = 64;
  for (const std::string& name : body.names()) {
    const bool printable = std::all_of(name.begin(), name.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
    if (is_known(name) || name.size() > max_length || !printable) continue;
    const std::lock_guard lock(mutex);
    if (logged.size() < max_logged && logged.insert(name).second) {
      log(LogLevel::warning, "chat request: unknown field '{}' ignored (logged once)", name);
    }
  }
}

void refuse_unsupported_values(const JsonBody& body) {
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
  for (const auto name : thinking_budgets) {
    if (body.integer(name, -1, any_integer).value_or(-1) != -1) throw not_supported(name, "a thinking budget");
  }
  for (const auto name : {"n", "best_of"}) {
    if (body.integer(name, 1, 128).value_or(1) != 1) throw not_supported(name, "more than one choice");
  }
  if (!body.boolean("skip_special_tokens").value_or(true))
    throw not_supported("skip_special_tokens", "the value false");
}

void read_tool_choice(const JsonBody& body, ChatRequest& request) {
  request.parallel_tool_calls = body.boolean("parallel_tool_calls").value_or(true);
  for (const auto name : {"tool_choice", "function_call"}) {
    if (!body.has(name)) continue;
    if (!body.is_string(name)) {
      (void)body.object(name);  // neither a string nor an object: wrong type
      throw not_supported(name, "a named tool");
    }
    const std::string choice = *body.string(name);
    request.tool_choice_none = request.tool_choice_none || choice == "none";
    if (choice == "auto" || choice == "none") continue;
    if (choice == "required" || choice == "any") throw not_supported(name, fmt::format("'{}'", choice));
    throw invalid_field(name, fmt::format("found '{}'; expected 'auto', 'none', 'required' or an object", choice));
  }
}

void check_formats(const JsonBody& body) {
  if (const auto format = body.object("response_format")) {
    const auto type = format->string("type");
    if (!type) throw invalid_field("response_format.type", "missing; expected 'text'");
    if (*type != "text") throw not_supported("response_format", fmt::format("type '{}'", *type));
  }
  for (const std::string& modality : body.strings("modalities", false).value_or(std::vector<std::string>{})) {
    if (modality != "text") throw not_supported("modalities", fmt::format("'{}'", modality));
  }
}

// OpenRouter's object; effort and enabled shape the prompt and are read with it.
void read_reasoning_object(const JsonBody& body, ChatRequest& request) {
  const auto reasoning = body.object("reasoning");
  if (!reasoning) return;
  if (reasoning->boolean("exclude").value_or(false)) request.include_reasoning = false;
  if (reasoning->has("max_tokens")) throw not_supported("reasoning.max_tokens", "a thinking budget");
}

void read_sampling(const JsonBody& body, const GenerationDefaults& defaults, ChatRequest& request) {
  auto& sampling = request.sampling;
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
  if (seed && *seed != -1) request.seed = static_cast<uint64_t>(*seed);
}

void read_lengths(const JsonBody& body, ChatRequest& request) {
  std::string_view name = "max_completion_tokens";
  for (const auto alias : {"max_completion_tokens", "max_tokens", "n_predict"}) {
    // Every alias is checked, the first one given counts. n_predict -1 is llama-server's "no limit".
    const bool unlimited = alias == std::string_view("n_predict") && body.integer(alias, -1, any_integer) == -1;
    const auto value = unlimited ? std::nullopt : body.integer(alias, 1, any_integer);
    if (value && !request.max_tokens) {
      request.max_tokens = value;
      name = alias;
    }
  }
  request.min_tokens = body.integer("min_tokens", 0, any_integer).value_or(0);
  if (request.max_tokens && request.min_tokens > *request.max_tokens) {
    throw invalid_field("min_tokens",
                        fmt::format("{} is more than {} = {}", request.min_tokens, name, *request.max_tokens));
  }
}

void read_stops(const JsonBody& body, const ServedModel& model, ChatRequest& request) {
  request.stop = body.strings("stop", true).value_or(std::vector<std::string>{});
  if (request.stop.size() > max_stop_strings) {
    throw invalid_field("stop", fmt::format("{} entries; expected at most {}", request.stop.size(), max_stop_strings));
  }
  size_t bytes = 0;
  for (size_t i = 0; i < request.stop.size(); ++i) {
    if (request.stop[i].empty()) throw invalid_field("stop", fmt::format("entry {} is empty", i));
    bytes += request.stop[i].size();
  }
  if (bytes > max_stop_bytes) {
    throw invalid_field("stop", fmt::format("{} bytes in all; expected at most {}", bytes, max_stop_bytes));
  }
  for (const int64_t id : body.integers("stop_token_ids", 0, model.vocab_size - 1).value_or(std::vector<int64_t>{})) {
    request.stop_token_ids.push_back(static_cast<int32_t>(id));
  }
  // Every step looks through this list, so it must not be longer than the vocabulary.
  auto& ids = request.stop_token_ids;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  request.include_stop_str_in_output = body.boolean("include_stop_str_in_output").value_or(false);
  request.ignore_eos = body.boolean("ignore_eos").value_or(false);
}

void read_cache_salt(const JsonBody& body, ChatRequest& request) {
  if (!body.has("cache_salt")) return;
  request.cache_salt = *body.string("cache_salt");
  const size_t size = request.cache_salt.size();
  if (size == 0 || size > max_cache_salt) {
    throw invalid_field("cache_salt", fmt::format("{} bytes; expected 1 to {}", size, max_cache_salt));
  }
}

// Whether the drafter that is asked for is loaded is the engine's to say.
void read_drafter(const JsonBody& body, ChatRequest& request) {
  if (const auto name = body.string("drafter")) {
    try {
      request.drafter = draft::parse_choice(*name, "drafter");
    } catch (const Error& error) {
      throw invalid_field("drafter", fmt::format("found {}; expected {}", error.found(), error.expected()));
    }
  }
  const auto draft = body.boolean("draft");
  if (!draft) return;
  if (request.drafter && *draft == (*request.drafter == draft::Choice::none)) {
    throw invalid_field("draft", fmt::format("{} contradicts drafter '{}'", *draft, draft::name_of(*request.drafter)));
  }
  if (!*draft) request.drafter = draft::Choice::none;
}

}  // namespace

ChatRequest parse_chat_request(const JsonBody& body, const ServedModel& model) {
  ChatRequest request;
  request.model = body.string("model").value_or("");
  if (request.model.size() > max_model_name) {
    throw invalid_field("model", fmt::format("{} bytes; expected at most {}", request.model.size(), max_model_name));
  }
  request.stream = body.boolean("stream").value_or(false);
  if (const auto options = body.object("stream_options")) {
    request.include_usage = options->boolean("include_usage").value_or(false);
    request.continuous_usage_stats = options->boolean("continuous_usage_stats").value_or(false);
  }
  request.include_reasoning = body.boolean("include_reasoning").value_or(true);
  read_sampling(body, model.defaults, request);
  read_lengths(body, request);
  read_stops(body, model, request);
  read_reasoning_object(body, request);
  read_cache_salt(body, request);
  read_drafter(body, request);
  refuse_unsupported_values(body);
  read_tool_choice(body, request);
  check_formats(body);
  log_unknown_fields(body);
  return request;
}

}  // namespace tandem::api
