// The engine as its users see it: requests in, events out. It knows tokens, not texts and not HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

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

struct Request {
  std::string id;                   // for logs
  std::vector<int32_t> prompt_ids;  // not empty, each below vocab_size
  SamplingParams sampling;
  int64_t max_tokens = 0;               // >= 1; the caller has clamped it to the room left
  int64_t min_tokens = 0;               // stop ids are masked until this many tokens were sampled
  std::vector<int32_t> stop_token_ids;  // model's eos ids and the request's own
};

enum class FinishReason { stop, length, cancelled, error };

struct Timings {  // milliseconds
  double queue_ms = 0, prefill_ms = 0, decode_ms = 0;
};

struct Event {
  enum class Kind { admitted, token, finished };
  Kind kind = Kind::token;
  int32_t token = -1;                        // token: the sampled id (stop tokens come with `finished` instead)
  FinishReason reason = FinishReason::stop;  // finished
  int32_t stop_token = -1;                   // finished by stop: which id
  std::string error;                         // finished by error: message for the client
  Timings timings;                           // finished
};

struct Status {
  bool ready = false;
  bool broken = false;  // latched: a step failed; restart the program
  std::string reason;   // why broken or not ready
  int64_t running = 0, waiting = 0;
  int64_t max_model_len = 0;
  int64_t steps = 0;
  double seconds_since_last_step = 0;  // or since the running request was admitted, whichever is less
};

class Engine {
 public:
  // Called on the engine's thread, in order, for one request; must not block and must not throw. `finished` is the
  // last.
  using Sink = std::function<void(const Event&)>;

  virtual ~Engine() = default;

  // Queues the request and returns a number for cancel(). Throws Error(usage) for a request that can never run (empty
  // prompt, id out of range, prompt_ids + 1 > max_model_len), Error(resource) when the engine is broken or stopping.
  virtual uint64_t submit(Request request, Sink sink) = 0;
  // The request ends with `cancelled` soon; unknown or ended numbers are ignored.
  virtual void cancel(uint64_t number) = 0;
  virtual Status status() const = 0;
};

}  // namespace tandem::engine
