// Limits of settings and of requests.
#include "engine/check_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tandem::engine {
namespace {

template <typename Value>
[[noreturn]] void refuse(std::string field, const Value& found, std::string expected) {
  throw Error(ErrorCode::usage, std::move(field), fmt::format("{}", found), std::move(expected));
}

void check_sampling(const SamplingParams& p) {
  if (!std::isfinite(p.temperature) || p.temperature < 0) refuse("temperature", p.temperature, "a finite number >= 0");
  if (!(p.top_p > 0 && p.top_p <= 1)) refuse("top_p", p.top_p, "a number in (0, 1]");
  if (!(p.min_p >= 0 && p.min_p <= 1)) refuse("min_p", p.min_p, "a number in [0, 1]");
}

void check_penalties(const SamplingParams& p, const SchedulerOptions& options) {
  const auto within = [](const char* name, double value, double limit) {
    if (!(value >= -limit && value <= limit)) refuse(name, value, fmt::format("a number from {} to {}", -limit, limit));
  };
  // Divided by a smaller one a logit could become infinite.
  if (!(p.repetition_penalty >= 1e-6 && p.repetition_penalty <= 1e6))
    refuse("repetition_penalty", p.repetition_penalty, "a number from 0.000001 to 1000000");
  within("presence_penalty", p.presence_penalty, 2);
  within("frequency_penalty", p.frequency_penalty, 2);
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= options.vocab_size)
      refuse("logit_bias", id, fmt::format("token ids from 0 to {}", options.vocab_size - 1));
    within("logit_bias", bias, 100);
  }
}

void check_drafter(const Request& request, const DraftOptions& options) {
  if (!request.drafter) return;
  std::string there = "none";
  bool is_there = *request.drafter == draft::Choice::none;
  const auto offer = [&](bool has, draft::Choice choice) {
    if (!has) return;
    there += fmt::format(", {}", draft::name_of(choice));
    is_there = is_there || *request.drafter == choice;
  };
  offer(options.has_copy, draft::Choice::copy);
  offer(options.has_mtp, draft::Choice::mtp);
  offer(options.has_dflash2, draft::Choice::dflash2);
  offer(options.has_copy || options.has_mtp || options.has_dflash2, draft::Choice::automatic);
  if (!is_there)
    refuse("drafter", fmt::format("'{}', which is not loaded", draft::name_of(*request.drafter)),
           fmt::format("one of those that are: {}", there));
}

void check_prompt(const Request& request, const SchedulerOptions& options, int64_t max_rows) {
  if (request.prompt_ids.empty()) refuse("prompt", "no tokens", "at least one");
  for (size_t i = 0; i < request.prompt_ids.size(); ++i)
    if (request.prompt_ids[i] < 0 || request.prompt_ids[i] >= options.vocab_size)
      refuse(fmt::format("prompt_ids[{}]", i), request.prompt_ids[i], fmt::format("0 to {}", options.vocab_size - 1));
  const auto length = std::ssize(request.prompt_ids);
  if (length + 1 > max_rows) {
    const bool by_window = max_rows == options.max_model_len;
    refuse("prompt", fmt::format("{} tokens", length),
           fmt::format("at most {} ({} {} less one token of reply)", max_rows - 1,
                       by_window ? "max_model_len" : "rows of the token pool", max_rows));
  }
}

// A typo in a position must not silently keep nothing.
void check_reuse(const Request& request) {
  const auto length = std::ssize(request.prompt_ids);
  for (size_t i = 0; i < request.keep_positions.size(); ++i) {
    const int64_t position = request.keep_positions[i];
    if (position < 1 || position > length)
      refuse(fmt::format("keep_positions[{}]", i), position, fmt::format("1 to {}", length));
  }
  for (size_t i = 0; i < request.prompt_parts.size(); ++i) {
    const PromptPart& part = request.prompt_parts[i];
    if (part.begin < 0 || part.begin > part.end || part.end > length)
      refuse(fmt::format("prompt_parts[{}]", i), fmt::format("[{}, {})", part.begin, part.end),
             fmt::format("a span of [0, {})", length));
  }
}

}  // namespace

void check_request(const Request& request, const SchedulerOptions& options, int64_t max_rows) {
  check_prompt(request, options, max_rows);
  check_reuse(request);
  if (request.max_tokens < 1) refuse("max_tokens", request.max_tokens, "at least 1");
  if (request.min_tokens < 0) refuse("min_tokens", request.min_tokens, "at least 0");
  if (request.deadline_s && !(*request.deadline_s > 0))
    refuse("deadline_s", *request.deadline_s, "more than 0 seconds");
  const auto& stops = request.stop_token_ids;
  const auto first_stop = std::lower_bound(stops.begin(), stops.end(), 0);
  const auto last_stop = std::lower_bound(first_stop, stops.end(), options.sampled_tokens);
  if (request.min_tokens > 0 && last_stop - first_stop >= options.sampled_tokens)
    refuse("stop_token_ids", "every token of the vocabulary", "a token that min_tokens may sample");
  check_sampling(request.sampling);
  check_penalties(request.sampling, options);
  check_drafter(request, options.draft);
  const RepetitionLimit& repetition = request.repetition;
  if (repetition.max_size < 0 || repetition.max_size > most_pattern_size)
    refuse("repetition.max_size", repetition.max_size, fmt::format("0 (off) to {}", most_pattern_size));
  if (repetition.is_on() && (repetition.min_size < 1 || repetition.min_size > repetition.max_size))
    refuse("repetition.min_size", repetition.min_size, fmt::format("1 to max_size {}", repetition.max_size));
  if (repetition.is_on() && (repetition.min_count < 2 || repetition.min_count > most_pattern_count))
    refuse("repetition.min_count", repetition.min_count, fmt::format("2 to {}", most_pattern_count));
  if (request.prompt_logprobs < -1 || request.prompt_logprobs > most_logprobs)
    refuse("prompt_logprobs", request.prompt_logprobs, fmt::format("-1 (none) to {}", most_logprobs));
  if (request.logprobs < -1 || request.logprobs > most_logprobs)
    refuse("logprobs", request.logprobs, fmt::format("-1 (none) to {}", most_logprobs));
}

void check_options(const SchedulerOptions& options) {
  const auto at_least = [](const char* name, int64_t value, int64_t smallest) {
    if (value < smallest) refuse(name, value, fmt::format("at least {}", smallest));
  };
  const forward::Capacity& capacity = options.capacity;
  at_least("vocab_size", options.vocab_size, 1);
  at_least("sampled_tokens", options.sampled_tokens, 1);
  at_least("max_model_len", options.max_model_len, 2);
  at_least("--max-num-seqs", capacity.slots, 1);
  at_least("pages", capacity.pages, 2);
  at_least("max_stream_pages", capacity.max_stream_pages, 0);
  at_least("page_rows", capacity.page_rows, 1);
  at_least("page_groups", options.page_groups, 1);
  at_least("kept_states", capacity.kept_states, 0);
  if (capacity.max_rows < capacity.slots)
    refuse("--max-num-batched-tokens", capacity.max_rows, fmt::format("at least --max-num-seqs {}", capacity.slots));
  at_least("max_logit_rows", capacity.max_logit_rows, capacity.slots);
  if (options.max_waiting < 1 || options.max_waiting > most_waiting)
    refuse("--max-queued-requests", options.max_waiting, fmt::format("1 to {}", most_waiting));
  if (!(options.prefill_slice_ms >= 0 && options.prefill_slice_ms <= 3.6e6))
    refuse("--prefill-slice-ms", options.prefill_slice_ms, "0 (off) to 3600000");
  if (!(options.fill_share >= smallest_fill_share && options.fill_share <= 1))
    refuse("--fill-share", options.fill_share, fmt::format("{} to 1", smallest_fill_share));
  at_least("smallest_stride", options.keep.smallest_stride, 0);
  at_least("largest_stride", options.keep.largest_stride, options.keep.smallest_stride);
  at_least("stride_divisor", options.keep.stride_divisor, 1);
  at_least("shortest_fork", options.keep.shortest_fork, 1);
  at_least("--num-speculative-tokens", options.draft.policy.depth, 0);
  if (options.draft.policy.depth > draft::most_drafts)
    refuse("--num-speculative-tokens", options.draft.policy.depth, fmt::format("0 to {}", draft::most_drafts));
  at_least("context_rows", options.draft.context_rows, 0);
}

}  // namespace tandem::engine
