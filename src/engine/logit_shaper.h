// What a request changes in its logits before the sampling rule: penalties, bias, the mask of its rule (decisions.md,
// "sampling order"). Per row: a row behind drafts counts them as part of the reply, because verification goes row by
// row and accepts each token before it looks at the next row (spec/speculation.md 3.7).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace tandem::engine {

class LogitShaper {
 public:
  // Everything is allocated here.
  LogitShaper(int32_t vocab_size, int32_t slots);

  // A stream begins in the slot; ids[0, prompt) is its prompt, what follows its reply so far.
  void start(int32_t slot, const SamplingParams& params, std::span<const int32_t> ids, int64_t prompt);
  // The reply's next token.
  void accept(int32_t slot, int32_t token);
  // `logits` as it is if there is nothing to change, else a changed copy that is valid until the next call:
  //   repetition_penalty  l > 0 ? l / p : l · p for tokens of the prompt or the reply,
  //   frequency_penalty   l − f · (number in the reply),   presence_penalty  l − p for tokens of the reply,
  //   logit_bias          l + b,
  //   rule                −inf where its bit is clear.
  std::span<const float> shape(int32_t slot, std::span<const float> logits, const SamplingParams& params,
                               TokenRule* rule);

 private:
  struct Counts {
    bool used = false;
    std::vector<int32_t> in_reply;   // [vocab_size]
    std::vector<uint8_t> in_prompt;  // [vocab_size]
  };
  void penalise(const Counts& counts, const SamplingParams& params);

  std::vector<Counts> counts_;  // [slots]
  std::vector<float> row_;      // [vocab_size]
  std::vector<uint32_t> bits_;  // [vocab_size / 32]
};

}  // namespace tandem::engine
