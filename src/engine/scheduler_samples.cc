// Which rows bring a token in place of their logits: those of which nothing but the request's sampling rule is asked.
#include <fmt/core.h>

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "engine/scheduler.h"

namespace tandem::engine {

bool Scheduler::add_sample(const Job& job, int64_t position, forward::Step& step) const {
  if (!options_.samples_in_step) return false;
  const auto first = static_cast<int32_t>(step.masked_tokens.size());
  const AllowedTokens allowed = allowed_at(job, position);
  step.masked_tokens.insert(step.masked_tokens.end(), allowed.masked.begin(), allowed.masked.end());
  return finish_sample(job, position, first, step);
}

// Of a text step's row: what the logits are needed for beside the sampling rule is asked before the step.
bool Scheduler::add_text_sample(const Job& job, int64_t position, std::span<const int32_t> drafts, bool verifies) {
  const Request& request = job.request;
  if (!options_.samples_in_step || request.logprobs >= 0 || request.sampling.shapes_logits()) return false;
  if (verifies && options_.draft.verify == DraftVerify::ratio && request.sampling.temperature >= greedy_temperature)
    return false;
  const auto first = static_cast<int32_t>(step_.masked_tokens.size());
  bool listed = true;
  try {
    listed = request.rule == nullptr || request.rule->list_masked(drafts, step_.masked_tokens);
  } catch (const std::exception&) {  // choose() asks the rule again, where its faults are dealt with
    listed = false;
  }
  if (!listed) {
    step_.masked_tokens.resize(static_cast<size_t>(first));
    return false;
  }
  const AllowedTokens allowed = allowed_at(job, position);
  step_.masked_tokens.insert(step_.masked_tokens.end(), allowed.masked.begin(), allowed.masked.end());
  return finish_sample(job, position, first, step_);
}

// The sample of the step's last logit row or head slot, with the masked ids from `first` on; false: they are too many.
bool Scheduler::finish_sample(const Job& job, int64_t position, int32_t first, forward::Step& step) const {
  const int64_t masked = std::ssize(step.masked_tokens) - first;
  if (masked > forward::RowSample::most_masked) {
    step.masked_tokens.resize(static_cast<size_t>(first));
    return false;
  }
  const SamplingParams& params = job.request.sampling;
  step.samples.push_back({.temperature = params.temperature,
                          .top_p = params.top_p,
                          .min_p = params.min_p,
                          .seed = params.seed,
                          .position = position,
                          .row = static_cast<int32_t>(step.logit_rows.size() + step.head_slots.size()) - 1,
                          .top_k = std::max(params.top_k, 0),
                          .size = std::min(options_.sampled_tokens, options_.vocab_size),
                          .first_masked = first,
                          .masked = static_cast<int32_t>(masked)});
  return true;
}

// The token that the model chose, or nothing where the request's own demands leave none.
std::optional<int32_t> Scheduler::token_of(const ops::Sampled& sampled, const Job& job, bool is_masked) const {
  if (sampled.status == ops::sample_chosen && sampled.token >= 0 && sampled.token < options_.sampled_tokens)
    return sampled.token;
  if (sampled.status == ops::sample_all_masked && is_masked) return std::nullopt;
  const char* found = sampled.status == ops::sample_not_finite   ? "a logit that is no finite number"
                      : sampled.status == ops::sample_all_masked ? "every token is masked"
                                                                 : "a token that there is not";
  throw Error(ErrorCode::internal, "sampling in the step",
              fmt::format("{} in a row of request {}", found, job.request.id), "a token");
}

}  // namespace tandem::engine
