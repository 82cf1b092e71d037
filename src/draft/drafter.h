// What proposes drafts: told after every step what the streams have become, it says what may come next. The engine
// owns one; behind it may stand copies of earlier text, the MTP layer, a DFlash2 drafter, or a test's script.
#pragma once

#include <cstdint>
#include <span>

#include "draft/proposal.h"
#include "forward/step.h"

namespace tandem::draft {

// A stream after a step, whether it had rows in it or not.
struct StreamView {
  int32_t slot = 0;
  std::span<const int32_t> ids;         // prompt and reply so far
  int64_t prompt = 0;                   // of them
  int64_t length = 0;                   // rows run and kept: ids[length], if there is one, is the next token to run
  std::span<const int32_t> page_table;  // pages of at least the rows [0, length + 1 + most)
  bool ran = false;                     // had rows in the last step
  bool settle = false;                  // its state is kept before its next row: what drafters store must be complete

  int32_t most = 0;  // drafts that may be verified next; 0: none are wanted (a prompt goes on, the reply has ended, …)
  Choice choice = Choice::none;
  double temperature = 0;  // below 1e-5: greedy
  uint64_t seed = 0;
  bool draws = false;  // ratio verification: drafts are drawn, with noise of their own, and their distributions told

  Proposal* proposal = nullptr;  // out; cleared before
};

// The request's own sampling rule, applied to draft logits.
class TokenPicker {
 public:
  struct Pick {
    int32_t token = 0;
    double probability = 1;  // its share after the rule's temperature and filters (greedy: at temperature 1)
  };
  virtual ~TokenPicker() = default;
  // `logits`: [vocab_size] for `position` of the slot's stream. With `drawn_from`: draws with noise that verification
  // does not use and tells the distribution.
  virtual Pick pick(int32_t slot, std::span<const float> logits, int64_t position, DraftDistribution* drawn_from) = 0;
  // The same rule for the step's last logit row as a sample with its probability, so that the model picks in the step
  // itself. False: it cannot, and pick() gets the logits.
  virtual bool add_sample(int32_t /*slot*/, int64_t /*position*/, forward::Step& /*step*/) { return false; }
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // A stream begins in a slot, with `length` rows of it restored (0: none). `ids`: its tokens so far.
  virtual void start(int32_t slot, std::span<const int32_t> ids, int64_t length) = 0;
  // After each text step, and after verified() of its streams: what is to be absorbed is, and proposals are made.
  // Streams are of different slots. Throws what the model throws; then the model's state can no longer be trusted.
  virtual void propose(std::span<const StreamView> streams, TokenPicker& picker) = 0;
  // `tried` drafts of the slot's last proposal were verified and the first `accepted` of them were right.
  virtual void verified(int32_t slot, const Proposal& proposal, int32_t tried, int32_t accepted) = 0;
};

}  // namespace tandem::draft
