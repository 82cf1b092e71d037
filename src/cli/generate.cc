// Prompt in, reply out, with the same preparation as the server's for chat bodies.
#include "cli/generate.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/chat_prompt.h"
#include "api/errors.h"
#include "base/error.h"
#include "chat/stop_strings.h"
#include "cli/standard_io.h"
#include "engine/run_request.h"

namespace tandem::cli {
namespace {

constexpr int64_t default_max_tokens = 512;  // of --prompt and --prompt-ids; a chat body may use the whole window

struct Job {
  engine::Request request;
  std::vector<std::string> stop;
  bool stop_in_output = false;
};

// "[gMASK]<sop>", as the server's /v1/completions does (spec/frontend.md D.5); nothing where a model has no such
// tokens.
std::vector<int32_t> prefix_ids(const text::Tokenizer& tokenizer) {
  const auto mask = tokenizer.added_token("[gMASK]"), start = tokenizer.added_token("<sop>");
  if (!mask || !start) return {};
  return {*mask, *start};
}

std::vector<int32_t> encode_prompt(const text::Tokenizer& tokenizer, const std::string& prompt,
                                   bool add_special_tokens) {
  auto ids = tokenizer.encode(prompt, text::AddedTokens::recognise);
  const auto prefix = add_special_tokens ? prefix_ids(tokenizer) : std::vector<int32_t>{};
  const bool has_it = ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
  if (!has_it) ids.insert(ids.begin(), prefix.begin(), prefix.end());
  return ids;
}

Job job_of_body(const std::string& path, LoadedModel& model) {
  const std::string body = read_text(path);
  auto prepared = api::prepare_chat(body, model.served(), {});
  Job job;
  job.stop = prepared.request.stop;
  job.stop_in_output = prepared.request.include_stop_str_in_output;
  job.request = std::move(prepared.engine_request);
  return job;
}

Job job_of_prompt(const GenerateOptions& options, LoadedModel& model) {
  Job job;
  auto& request = job.request;
  if (options.prompt_ids) {
    request.prompt_ids = parse_ids(*options.prompt_ids);
  } else {
    std::string text = *options.prompt;
    if (text == "-") {
      text = read_standard_input();
      if (text.ends_with('\n')) text.pop_back();  // the line end that echo and editors add
    }
    request.prompt_ids = encode_prompt(model.tokenizer(), text, options.add_special_tokens);
  }
  request.sampling = default_sampling(model.defaults());
  request.max_tokens = default_max_tokens;
  request.stop_token_ids = model.defaults().eos_token_ids;
  return job;
}

void check_options(const GenerateOptions& options) {
  const int given = static_cast<int>(options.prompt.has_value()) + static_cast<int>(options.prompt_ids.has_value()) +
                    static_cast<int>(options.messages.has_value());
  if (given != 1)
    throw Error(ErrorCode::usage, "prompt", std::to_string(given) + " given",
                "exactly one of --prompt, --prompt-ids and --messages");
  if (options.prompt_ids) (void)parse_ids(*options.prompt_ids);
  for (const auto& stop : options.stop)
    if (stop.empty()) throw Error(ErrorCode::usage, "--stop", "an empty string", "some text");
}

Job make_job(const GenerateOptions& options, LoadedModel& model) {
  Job job = options.messages ? job_of_body(*options.messages, model) : job_of_prompt(options, model);
  job.request.sampling = apply(options.sampling, job.request.sampling);
  job.request.max_tokens = options.sampling.max_tokens.value_or(job.request.max_tokens);
  job.request.min_tokens = options.min_tokens.value_or(job.request.min_tokens);
  job.stop.insert(job.stop.end(), options.stop.begin(), options.stop.end());
  if (options.ignore_eos) job.request.stop_token_ids.clear();
  return job;
}

// Sampled ids to text, cut at the first stop string.
class TextReply {
 public:
  TextReply(const text::Tokenizer& tokenizer, const Job& job, bool print)
      : tokenizer_(tokenizer), stop_(job.stop, job.stop_in_output), print_(print) {}

  bool push(int32_t id) {  // false: a stop string is complete
    if (!tokenizer_.is_special(id)) take(utf8_.push(tokenizer_.token_bytes(id)));
    return !stop_.matched();
  }
  void finish() {
    take(utf8_.finish());
    for (const auto& piece : stop_.finish()) append(piece.text);
  }
  const std::string& text() const { return text_; }
  std::optional<size_t> matched() const { return stop_.matched(); }

 private:
  void take(std::string piece) {
    if (piece.empty()) return;
    for (const auto& shown : stop_.push({{chat::ReplyPiece::Kind::content, std::move(piece)}})) append(shown.text);
  }
  void append(const std::string& piece) {
    text_ += piece;
    if (print_) write_out(piece);
  }

  const text::Tokenizer& tokenizer_;
  text::Utf8Stream utf8_;
  chat::StopStrings stop_;
  bool print_;
  std::string text_;
};

const char* reason_name(const engine::Reply& reply, bool stop_string) {
  if (stop_string) return "stop";
  switch (reply.reason) {
    case engine::FinishReason::stop: return "stop";
    case engine::FinishReason::length: return "length";
    case engine::FinishReason::deadline: return "deadline";
    case engine::FinishReason::repetition: return "repetition";
    case engine::FinishReason::cancelled: return "cancelled";
    case engine::FinishReason::error: return "error";
  }
  return "error";
}

double per_second(int64_t tokens, double milliseconds) {
  return milliseconds > 0 ? static_cast<double>(tokens) * 1000.0 / milliseconds : 0.0;
}

struct Generated {
  std::vector<int32_t> prompt_ids;
  uint64_t seed = 0;
  engine::Reply reply;
  std::string text;
  std::optional<std::string> stop_string;
  double load_ms = 0;
};

std::string report_json(const Generated& outcome, const std::string& model) {
  const auto& timings = outcome.reply.timings;
  const auto prompt = std::ssize(outcome.prompt_ids), sampled = std::ssize(outcome.reply.ids);
  nlohmann::ordered_json json;
  json["schema"] = "tandem.generate/1";
  json["model"] = model;
  json["prompt_ids"] = outcome.prompt_ids;
  json["ids"] = outcome.reply.ids;
  json["text"] = outcome.text;
  json["finish_reason"] = reason_name(outcome.reply, outcome.stop_string.has_value());
  json["stop_reason"] = nullptr;  // the stop string, or the id of the stop token
  if (outcome.stop_string) json["stop_reason"] = *outcome.stop_string;
  if (!outcome.stop_string && outcome.reply.stop_token >= 0) json["stop_reason"] = outcome.reply.stop_token;
  json["seed"] = outcome.seed;
  // The first token belongs to prefill; a stop token is one more step of decode.
  const auto decoded = sampled - 1 + (outcome.reply.stop_token >= 0 ? 1 : 0);
  json["timings"] = {{"load_ms", outcome.load_ms},
                     {"queue_ms", timings.queue_ms},
                     {"prefill_ms", timings.prefill_ms},
                     {"decode_ms", timings.decode_ms},
                     {"prefill_tokens_per_second", per_second(prompt, timings.prefill_ms)},
                     {"decode_tokens_per_second", per_second(decoded > 0 ? decoded : 0, timings.decode_ms)}};
  const engine::DraftStats& drafts = outcome.reply.drafts;
  json["speculative_decoding"] = {
      {"steps", drafts.steps}, {"draft_tokens", drafts.drafted}, {"accepted_draft_tokens", drafts.accepted}};
  // A path need not be UTF-8.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  size_t begin = 0;
  while (true) {
    const size_t end = std::min(text.find(',', begin), text.size());
    size_t first = begin, last = end;
    while (first < last && text[first] == ' ') ++first;
    while (last > first && text[last - 1] == ' ') --last;
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(text.data() + first, text.data() + last, id);
    if (error != std::errc{} || stop != text.data() + last)
      throw Error(ErrorCode::usage, "--prompt-ids", "\"" + text.substr(begin, std::min<size_t>(end - begin, 40)) + "\"",
                  "token ids separated by commas");
    ids.push_back(id);
    if (end == text.size()) return ids;
    begin = end + 1;
  }
}

int run_generate(const GenerateOptions& options) {
  check_options(options);
  const auto start = std::chrono::steady_clock::now();
  LoadedModel model(options.load);
  Generated outcome;
  outcome.load_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();

  Job job;
  try {
    job = make_job(options, model);
  } catch (const api::ApiError& e) {
    constexpr std::string_view subject = "The request body ";
    const std::string place = options.messages.value_or("prompt");
    const std::string text = e.what();
    if (text.starts_with(subject)) throw Error(ErrorCode::usage, place, text.substr(subject.size()));
    throw Error(ErrorCode::usage, place, text);
  }
  outcome.prompt_ids = job.request.prompt_ids;
  outcome.seed = job.request.sampling.seed;
  TextReply text(model.tokenizer(), job, !options.json);
  outcome.reply = engine::run_request(model.engine(), std::move(job.request),
                                      {.on_token = [&](int32_t id) { return text.push(id); }, .is_cancelled = {}});
  text.finish();
  outcome.text = text.text();
  if (text.matched()) outcome.stop_string = job.stop[*text.matched()];
  if (options.json)
    write_out(report_json(outcome, model.folder().string()));
  else if (outcome.text.empty() || outcome.text.back() != '\n')
    write_out("\n");
  return 0;
}

}  // namespace tandem::cli
