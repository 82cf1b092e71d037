// Every logit row comes to the host; those with a sample become a token there.
#include "engine/sample_on_host.h"

#include <algorithm>
#include <limits>

#include "engine/row_results.h"
#include "forward/step_book.h"

namespace tandem::engine {

SampleOnHost::SampleOnHost(StepRunner& runner, int32_t vocab_size, int32_t max_logit_rows)
    : runner_(runner), vocab_size_(vocab_size), max_logit_rows_(max_logit_rows), sampler_(vocab_size) {
  sampled_.reserve(static_cast<size_t>(max_logit_rows));
}

ops::Sampled SampleOnHost::choose(const forward::Step& step, const forward::RowSample& sample,
                                  std::span<const float> row) {
  if (!std::all_of(row.begin(), row.end(), [](float x) { return x < std::numeric_limits<float>::infinity(); }))
    return {-1, ops::sample_not_finite, 1};
  const auto masked = std::span(step.masked_tokens)
                          .subspan(static_cast<size_t>(sample.first_masked), static_cast<size_t>(sample.masked));
  bool any = false;
  for (int32_t id = 0; id < sample.size && !any; ++id)
    any = row[static_cast<size_t>(id)] > -std::numeric_limits<float>::infinity() &&
          std::find(masked.begin(), masked.end(), id) == masked.end();
  if (!any) return {-1, ops::sample_all_masked, 1};
  const SamplingParams params{.temperature = sample.temperature,
                              .top_k = sample.top_k,
                              .top_p = sample.top_p,
                              .min_p = sample.min_p,
                              .seed = sample.seed};
  const AllowedTokens allowed{sample.size, masked};
  if (sample.wants_probability == 0)
    return {sampler_.select(row, params, sample.position, allowed), ops::sample_chosen, 1};
  const Picked picked = sampler_.pick(row, params, sample.position, allowed);
  return {picked.token, ops::sample_chosen, picked.probability};
}

void SampleOnHost::run(const forward::Step& step) {
  sampled_.clear();
  whole_.clear();
  if (step.samples.empty()) {
    runner_.run(step);
    logits_ = runner_.logits();
    return;
  }
  forward::check_samples(step, vocab_size_, max_logit_rows_);
  plain_ = step;
  plain_.samples.clear();
  plain_.masked_tokens.clear();
  runner_.run(plain_);
  RowResults rows(plain_, runner_.logits(), {}, vocab_size_);
  auto sample = step.samples.begin();
  for (int32_t row = 0; rows.left() > 0; ++row) {
    const std::span<const float> logits = rows.next().logits;
    if (sample != step.samples.end() && sample->row == row) {
      sampled_.push_back(choose(step, *sample++, logits));
    } else {
      whole_.insert(whole_.end(), logits.begin(), logits.end());
    }
  }
  logits_ = whole_;
}

}  // namespace tandem::engine
