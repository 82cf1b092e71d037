// The engine as its users see it: requests in, events out. It knows tokens, not texts and not HTTP.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "draft/proposal.h"
#include "engine/repetition.h"
#include "forward/step_runner.h"

namespace tandem::engine {

// Order of application: penalties -> bias -> masks -> temperature (float64) -> top_k -> top_p by integer mass -> min_p
// -> keyed Gumbel (decisions.md, "sampling order"; spec/speculation.md 3.5).
struct SamplingParams {
  double temperature = 1.0;  // below 1e-5: greedy
  int32_t top_k = 0;         // 0: off
  double top_p = 1.0;        // (0, 1]
  double min_p = 0.0;        // [0, 1]
  uint64_t seed = 0;

  double repetition_penalty = 1.0;  // above 0: logits of tokens of prompt or reply are divided (negative ones
                                    // multiplied) by it
  double presence_penalty = 0.0;    // subtracted from logits of tokens of the reply
  double frequency_penalty = 0.0;   // the same, times their number
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // (id, added)

  bool shapes_logits() const {
    return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0 || !logit_bias.empty();
  }
};

// A rule of one request on which tokens may come next, beside its sampling: a grammar, say. Called on the engine's
// thread only. What it throws ends the request with an error.
class TokenRule {
 public:
  virtual ~TokenRule() = default;
  // Clears the bits of tokens that may not come next: bit id % 32 of word id / 32. All bits are set before.
  virtual void mask(std::span<uint32_t> bits) = 0;
  // False: mask() would clear no bit now, so it need not be called.
  virtual bool masks() const { return true; }
  // The next token of the reply: one that mask() allowed.
  virtual void accept(int32_t token) = 0;
  // How many of these tokens, one after another, may come next: drafts beyond need no rows. Leaves the rule as it was.
  virtual int32_t allowed_drafts(std::span<const int32_t> drafts) { return static_cast<int32_t>(drafts.size()); }
  // Adds to `ids` what mask() would not let come after these tokens: true if a few ids say all. False where only
  // mask() can say, after them. Leaves the rule as it was.
  virtual bool list_masked(std::span<const int32_t> tokens, std::vector<int32_t>& /*ids*/) {
    return tokens.empty() && !masks();
  }
  // The reply is complete as it stands, without a stop token: it ends with reason `stop`.
  virtual bool is_finished() const { return false; }
};

// A part of the prompt whose change deserves its own name when it makes a kept prefix useless.
struct PromptPart {
  int64_t begin = 0, end = 0;  // token positions [begin, end)
  enum class Kind { effort, template_text } kind = Kind::template_text;
};

// From here on a request is done in the background: while others wait, it gives its place back and goes on later.
inline constexpr int64_t background_priority = int64_t{1} << 32;

struct Request {
  std::string id;                   // for logs
  std::vector<int32_t> prompt_ids;  // not empty, each below vocab_size
  SamplingParams sampling;
  int64_t max_tokens = 0;               // >= 1; the caller has clamped it to the room left
  int64_t min_tokens = 0;               // stop ids are masked until this many tokens were sampled
  std::vector<int32_t> stop_token_ids;  // model's eos ids and the request's own

  // Reuse of kept prefixes.
  std::string cache_salt;               // only requests with the same salt share kept states
  std::vector<int64_t> keep_positions;  // where a later prompt is likely to part from this one, in (0, prompt]: the end
                                        // of the system prompt, the end of the history before the generation prompt
  int64_t shared_prefix = 0;  // one of them, or 0: the end of what other conversations begin with, too (system
                              // prompt and tools); its state leaves by recency only, however this one goes on
  std::vector<PromptPart> prompt_parts;  // for the reason of a miss
  bool needs_every_prompt_row = false;   // nothing may be skipped; implied by prompt_logprobs

  std::optional<draft::Choice> drafter;  // who proposes drafts; not given: the engine's default
  std::shared_ptr<TokenRule> rule;       // may be null
  // Called on the engine's thread with each token of the reply, in order, before its event: true ends the reply after
  // it with reason `stop` (a stop string is complete), so that no row behind it is kept. May be empty.
  std::function<bool(int32_t)> ends_after;
  RepetitionLimit repetition;    // ends the reply with reason `repetition`
  int64_t priority = 0;          // lower is admitted earlier, see background_priority
  int32_t prompt_logprobs = -1;  // like logprobs, of each token of the prompt but the first
  int32_t logprobs = -1;  // tokens of each position to report beside the chosen one, 0 to most_logprobs; −1: no report

  std::optional<double> deadline_s;  // seconds from submit() after which the request ends with `deadline`
};

enum class FinishReason { stop, length, cancelled, error, deadline, repetition };

// Why a prompt was not resumed to its end (spec/runtime.md b.4, b.5).
enum class PrefixMiss { none, new_prefix, evicted, other_salt, effort_changed, template_changed, logprobs_asked };
std::string_view name_of(PrefixMiss miss);  // "new prefix", "evicted by bytes", "other salt", "effort changed", …

struct Timings {  // milliseconds
  double queue_ms = 0, prefill_ms = 0, decode_ms = 0;
};

// Log-probabilities at one position, of the model's own logits: before penalties, masks, temperature and filters.
inline constexpr int32_t most_logprobs = 20;
struct TokenLogprobs {
  float chosen = 0;
  int32_t rank = 0;  // of the chosen token, 1: the likeliest; counted for tokens of the prompt only, else 0
  int32_t size = 0;  // of the best
  std::array<std::pair<int32_t, float>, most_logprobs> best{};  // (id, logprob) descending, ties to the smaller id
};

// How a request's drafts fared. A step here is one that had the request's pending token as a row: the token that the
// prompt gives is outside (spec/speculation.md 6.1).
struct DraftStats {
  int64_t steps = 0, steps_with_drafts = 0;
  int64_t drafted = 0, accepted = 0;                             // draft tokens
  std::array<int64_t, draft::most_drafts + 2> tokens_of_step{};  // [n]: steps that yielded n tokens, the stop token too
  std::array<int64_t, draft::most_drafts> drafted_at{}, accepted_at{};  // [i]: of the drafts at place i

  // In this order, so that the figures are right at any moment: a step begins, and for each of its tokens, first
  // whether it was the draft at that place.
  void begin_step(int32_t tried);
  void add_token(int32_t place, bool was_draft);
};

struct Event {
  // prompt_token: if prompt_logprobs were asked for, each token of the prompt from the second on, in order, after
  // `admitted` and before the first `token`.
  enum class Kind { admitted, prompt_token, token, finished };
  Kind kind = Kind::token;
  bool begins_step = false;                 // token: the first one of the step that yielded it
  const TokenLogprobs* logprobs = nullptr;  // prompt_token; token: if the request asked for them; valid during the call
  int32_t token = -1;                  // prompt_token; token: the sampled id (stop tokens come with `finished` instead)
  int64_t cached_tokens = 0;           // admitted: prompt tokens that need not be computed again
  PrefixMiss miss = PrefixMiss::none;  // admitted: why not more
  FinishReason reason = FinishReason::stop;  // finished
  int32_t stop_token = -1;                   // finished by stop: which id
  std::string error;                         // finished by error: message for the client
  Timings timings;                           // finished
  DraftStats drafts;                         // finished
};

struct Status {
  bool ready = false;
  bool broken = false;               // latched: a step failed; restart the program
  bool stuck = false;                // the watchdog's: no step has finished for too long; ends with the next that does
  std::string reason;                // why broken or not ready
  int64_t running = 0, waiting = 0;  // streams in slots; requests in the queue (given back ones included)
  int64_t max_model_len = 0;
  int64_t steps = 0;
  double seconds_since_last_step = 0;  // or since the engine last became busy, whichever is less

  // The pool and the kept states. Rows are token rows over all ranks.
  int64_t pool_rows = 0, free_rows = 0, reclaimable_rows = 0;             // reclaimable: held by kept states only
  int64_t kept_states = 0, kept_state_records = 0, kept_state_bytes = 0;  // bytes of all records
  // Since the start.
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;  // cached: prompt tokens that were not run
  int64_t preemptions = 0, evictions = 0;
  int64_t step_rows = 0;          // rows of all steps
  DraftStats drafts;              // of all requests
  forward::RunnerCounts runner;   // of a model on a GPU
  int64_t invalid_proposals = 0;  // drafts outside of the vocabulary, which were not used
};

// The queue has no place left: the client may come back later.
class QueueFull : public Error {
 public:
  explicit QueueFull(int64_t waiting);
};

class Engine {
 public:
  // Called on the engine's thread, in order, for one request; must not block and must not throw. `finished` is the
  // last.
  using Sink = std::function<void(const Event&)>;

  virtual ~Engine() = default;

  // Queues the request and returns a number for cancel(). Throws Error(usage) for a request that can never run (empty
  // prompt, id out of range, prompt_ids + 1 > max_model_len), Error(resource) when the engine is broken or stopping,
  // QueueFull when there is no place in the queue.
  virtual uint64_t submit(Request request, Sink sink) = 0;
  // The request ends with `cancelled` soon; unknown or ended numbers are ignored.
  virtual void cancel(uint64_t number) = 0;
  virtual Status status() const = 0;
};

}  // namespace tandem::engine
