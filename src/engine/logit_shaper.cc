// Penalties, bias and masks over one row.
#include "engine/logit_shaper.h"

#include <algorithm>
#include <limits>

namespace tandem::engine {

LogitShaper::LogitShaper(int32_t vocab_size, int32_t slots)
    : counts_(static_cast<size_t>(slots)),
      row_(static_cast<size_t>(vocab_size)),
      bits_((static_cast<size_t>(vocab_size) + 31) / 32) {
  for (Counts& counts : counts_) {
    counts.in_reply.resize(row_.size());
    counts.in_prompt.resize(row_.size());
  }
}

void LogitShaper::start(int32_t slot, const SamplingParams& params, std::span<const int32_t> ids, int64_t prompt) {
  Counts& counts = counts_[static_cast<size_t>(slot)];
  counts.used = params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
  if (!counts.used) return;
  std::fill(counts.in_reply.begin(), counts.in_reply.end(), 0);
  std::fill(counts.in_prompt.begin(), counts.in_prompt.end(), uint8_t{0});
  const auto reply = static_cast<size_t>(prompt);
  for (const int32_t id : ids.first(reply)) counts.in_prompt[static_cast<size_t>(id)] = 1;
  for (const int32_t id : ids.subspan(reply)) ++counts.in_reply[static_cast<size_t>(id)];
}

void LogitShaper::accept(int32_t slot, int32_t token) {
  Counts& counts = counts_[static_cast<size_t>(slot)];
  if (counts.used) ++counts.in_reply[static_cast<size_t>(token)];
}

void LogitShaper::penalise(const Counts& counts, const SamplingParams& params) {
  const auto repetition = static_cast<float>(params.repetition_penalty);
  const auto frequency = static_cast<float>(params.frequency_penalty);
  const auto presence = static_cast<float>(params.presence_penalty);
  for (size_t id = 0; id < row_.size(); ++id) {
    const int32_t in_reply = counts.in_reply[id];
    if (in_reply == 0 && counts.in_prompt[id] == 0) continue;
    float& logit = row_[id];
    logit = logit > 0.0f ? logit / repetition : logit * repetition;
    if (in_reply > 0) logit -= frequency * static_cast<float>(in_reply) + presence;
  }
}

std::span<const float> LogitShaper::shape(int32_t slot, std::span<const float> logits, const SamplingParams& params,
                                          TokenRule* rule) {
  if (rule != nullptr && !rule->masks()) rule = nullptr;
  if (!params.shapes_logits() && rule == nullptr) return logits;
  std::copy(logits.begin(), logits.end(), row_.begin());
  const Counts& counts = counts_[static_cast<size_t>(slot)];
  if (counts.used) penalise(counts, params);
  for (const auto& [id, bias] : params.logit_bias) row_[static_cast<size_t>(id)] += bias;
  if (rule == nullptr) return row_;
  std::fill(bits_.begin(), bits_.end(), ~uint32_t{0});
  rule->mask(bits_);
  for (size_t id = 0; id < row_.size(); ++id) {
    if ((bits_[id / 32] >> (id % 32) & 1) == 0) row_[id] = -std::numeric_limits<float>::infinity();
  }
  return row_;
}

}  // namespace tandem::engine
