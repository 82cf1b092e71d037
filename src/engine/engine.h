// The engine as its users see it: requests in, events out. It knows tokens, not texts and not HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tandem::engine {

// Order of application: temperature (float64) -> top_k -> top_p by integer mass -> min_p -> keyed Gumbel
// (decisions.md, "sampling order"; spec/speculation.md 3.5).
struct SamplingParams {
  double temperature = 1.0;  // below 1e-5: greedy
  int32_t top_k = 0;         // 0: off
  double top_p = 1.0;        // (0, 1]
  double min_p = 0.0;        // [0, 1]
  uint64_t seed = 0;
};

// A part of the prompt whose change deserves its own name when it makes a kept prefix useless.
struct PromptPart {
  int64_t begin = 0, end = 0;  // token positions [begin, end)
  enum class Kind { effort, template_text } kind = Kind::template_text;
};

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
  bool needs_every_prompt_row = false;   // prompt logprobs are asked for: nothing may be skipped

  std::optional<double> deadline_s;  // seconds from submit() after which the request ends with `deadline`
};

enum class FinishReason { stop, length, cancelled, error, deadline };

// Why a prompt was not resumed to its end (spec/runtime.md b.4, b.5).
enum class PrefixMiss { none, new_prefix, evicted, other_salt, effort_changed, template_changed, logprobs_asked };
std::string_view name_of(PrefixMiss miss);  // "new prefix", "evicted by bytes", "other salt", "effort changed", …

struct Timings {  // milliseconds
  double queue_ms = 0, prefill_ms = 0, decode_ms = 0;
};

struct Event {
  enum class Kind { admitted, token, finished };
  Kind kind = Kind::token;
  int32_t token = -1;                        // token: the sampled id (stop tokens come with `finished` instead)
  int64_t cached_tokens = 0;                 // admitted: prompt tokens that need not be computed again
  PrefixMiss miss = PrefixMiss::none;        // admitted: why not more
  FinishReason reason = FinishReason::stop;  // finished
  int32_t stop_token = -1;                   // finished by stop: which id
  std::string error;                         // finished by error: message for the client
  Timings timings;                           // finished
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
  int64_t step_rows = 0;  // rows of all steps
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
