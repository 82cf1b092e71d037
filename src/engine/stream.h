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
  int64_t scored = 0;        // rows of the prompt whose log-probabilities have been delivered
  int64_t passed = 0;        // requests that came later and were admitted earlier
  Time submitted{0}, admitted{0}, first_token{0}, deadline = never;
  bool was_admitted = false;
  bool receiver_failed = false;  // its sink threw: to be cancelled
  bool ended = false;            // `finished` has been sent
  DraftStats drafts;

  // Tokens of the prompt, the first one aside, still lack their log-probabilities.
  bool wants_scores() const { return request.prompt_logprobs >= 0 && scored < prompt - 1; }
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
  int64_t admitted_step = 0;        // steps that had been run when it was admitted
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

// Requests that came later and were admitted before an older one; with so many the older one is next, whatever its
// priority.
inline constexpr int64_t most_passes = 16;

// In which order requests are admitted and keep their place: by priority, then by age; before all others those that
// have been passed too often.
inline bool goes_before(const Job& a, const Job& b) {
  const bool a_first = a.passed >= most_passes, b_first = b.passed >= most_passes;
  if (a_first != b_first) return a_first;
  if (!a_first && a.request.priority != b.request.priority) return a.request.priority < b.request.priority;
  return a.number < b.number;
}

// It may be sent back to the queue for another's sake.
inline bool is_background(const Job& job) {
  return job.request.priority >= background_priority && job.passed < most_passes;
}

}  // namespace tandem::engine
