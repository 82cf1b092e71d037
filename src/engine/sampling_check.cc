// The same rows twice, and both samplers on them.
#include "engine/sampling_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "engine/sampler.h"

namespace tandem::engine {
namespace {

constexpr int32_t most_rows = 8;

// One of every kind: greedy, noise alone, each filter, all of them, and nearly flat, where noise decides all.
constexpr std::array<forward::RowSample, 8> kinds = {{
    {.temperature = 0},
    {.temperature = 1},
    {.temperature = 0.8, .top_k = 20},
    {.temperature = 1, .top_p = 0.95},
    {.temperature = 1.3, .min_p = 0.02},
    {.temperature = 0.7, .top_p = 0.9, .min_p = 0.01, .top_k = 50},
    {.temperature = 0.2, .top_p = 0.5},
    {.temperature = 20},
}};

std::string text_of(const forward::RowSample& s) {
  return fmt::format("temperature {}, top_k {}, top_p {}, min_p {}, seed {}, position {}", s.temperature, s.top_k,
                     s.top_p, s.min_p, s.seed, s.position);
}

}  // namespace

int64_t check_sampling(StepRunner& runner, const forward::Capacity& capacity, int32_t vocab_size,
                       int32_t sampled_tokens) {
  const int32_t rows = std::min({most_rows, capacity.max_rows, capacity.max_logit_rows, capacity.page_rows});
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  for (int32_t i = 0; i < rows; ++i)
    tokens[static_cast<size_t>(i)] = static_cast<int32_t>((int64_t{i} * 7919 + 17) % sampled_tokens);
  forward::Step step = forward::single_stream_step(tokens, 0, 1);
  step.logit_rows.resize(tokens.size());
  std::iota(step.logit_rows.begin(), step.logit_rows.end(), 0);
  runner.run(step);
  const std::vector<float> logits(runner.logits().begin(), runner.logits().end());
  const auto width = static_cast<size_t>(vocab_size);
  if (logits.size() != tokens.size() * width)
    throw Error(ErrorCode::internal, "sampling check", fmt::format("{} logits", logits.size()),
                fmt::format("{} rows of {}", rows, vocab_size));
  Sampler sampler(vocab_size);
  int64_t compared = 0;
  for (size_t round = 0; round < kinds.size(); ++round) {
    step.samples.clear();
    step.masked_tokens.assign(2, tokens[round % tokens.size()]);
    for (int32_t row = 0; row < rows; ++row) {
      forward::RowSample sample = kinds[(round + static_cast<size_t>(row)) % kinds.size()];
      sample.row = row;
      sample.size = sampled_tokens;
      sample.seed = 0x9E3779B97F4A7C15ULL * (round + 1);
      sample.position = (int64_t{row} << 20) + static_cast<int64_t>(round);
      sample.masked = row % 2;
      step.samples.push_back(sample);
    }
    runner.run(step);
    if (std::ssize(runner.sampled()) != rows)
      throw Error(ErrorCode::internal, "sampling check", fmt::format("{} tokens", runner.sampled().size()),
                  fmt::format("{}", rows));
    for (int32_t row = 0; row < rows; ++row, ++compared) {
      const forward::RowSample& sample = step.samples[static_cast<size_t>(row)];
      const SamplingParams params{.temperature = sample.temperature,
                                  .top_k = sample.top_k,
                                  .top_p = sample.top_p,
                                  .min_p = sample.min_p,
                                  .seed = sample.seed};
      const auto masked = std::span(step.masked_tokens).first(static_cast<size_t>(sample.masked));
      const int32_t expected = sampler.select(std::span(logits).subspan(static_cast<size_t>(row) * width, width),
                                              params, sample.position, {sampled_tokens, masked});
      const ops::Sampled& found = runner.sampled()[static_cast<size_t>(row)];
      if (found.status == ops::sample_chosen && found.token == expected) continue;
      throw Error(ErrorCode::failed_check, fmt::format("sampling in the step, row {} ({})", row, text_of(sample)),
                  fmt::format("token {} with status {}", found.token, found.status),
                  fmt::format("{}, which the host chooses from the same logits", expected));
    }
  }
  return compared;
}

}  // namespace tandem::engine
