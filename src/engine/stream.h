// A request on its way through the scheduler, and the slot that it runs in.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "draft/proposal.h"
#include "engine/engine.h"
#include "engine/scheduler_options.h"

namespace tandem::engine {

inline constexpr Time never{std::numeric_limits<Time::rep>::max()};

// A request from submit() to its `finished` event, and until its state is kept. It survives being given back.
struct Job {
  uint64_t number = 0;
  Request request;  // prompt_ids has moved to ids
  Engine::Sink sink;
  std::vector<int32_t> ids;  // the prompt, then every token sampled and delivered
  int64_t prompt = 0;        // tokens of the prompt
  int64_t emitted = 0;       // tokens sampled
  Time submitted{0}, admitted{0}, first_token{0}, deadline = never;
  bool was_admitted = false;
  bool receiver_failed = false;  // its sink threw: to be cancelled
  bool ended = false;            // `finished` has been sent
  DraftStats drafts;
};

struct Stream {
  enum class Phase : uint8_t {
    free,      // no request
    filling,   // rows of ids up to fill_end are to be run; none left: only the head row is wanted
    decoding,  // the last of ids is the pending token: sampled, to be run next
    ended,     // `finished` was sent; slot and pages go once the state is kept
  };
  Phase phase = Phase::free;
  int32_t slot = 0;
  std::unique_ptr<Job> job;
  int64_t length = 0;               // rows run
  int64_t fill_end = 0;             // tokens that the stream was admitted with
  int64_t kept = 0;                 // length of the state that it was resumed from or that was last kept
  int64_t fork = 0;                 // point where the prompt parts from stored text; 0: none
  KeepPoint next_keep;              // beyond length; {0}: none
  bool waits = false;               // could not grow this round
  std::vector<int32_t> page_table;  // capacity: the longest table
  draft::Proposal proposal;         // for the next step
  int32_t tried = 0;                // drafts of it in the step that runs

  bool is_running() const { return phase == Phase::filling || phase == Phase::decoding; }
};

}  // namespace tandem::engine
