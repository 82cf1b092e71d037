// One request, waited for: what commands and evaluations use in place of a sink of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/engine.h"

namespace tandem::engine {

struct Reply {
  std::vector<int32_t> ids;  // without the stop token
  FinishReason reason = FinishReason::stop;
  int32_t stop_token = -1;
  Timings timings;
  DraftStats drafts;
};

struct RunHooks {                         // both may be empty; called on the thread of run_request
  std::function<bool(int32_t)> on_token;  // false: cancel the request; the token still counts
  std::function<bool()> is_cancelled;     // looked at after every token and 20 times a second
};

// Submits and waits for the end. Throws what submit throws, what a hook throws (the request is then cancelled first)
// and Error(internal) when the engine failed.
Reply run_request(Engine& engine, Request request, const RunHooks& hooks = {});

}  // namespace tandem::engine
