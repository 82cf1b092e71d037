// What happens in a simulation, drawn from its seed before it starts.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/fake_model.h"
#include "engine/scheduler_options.h"
#include "engine/stream.h"

namespace tandem::engine {

struct ScriptedRequest {
  Request request;
  Time arrival{0};
  Time disconnect = never;  // the client is gone from then on
};

struct Script {
  FakeModelOptions model;
  SchedulerOptions options;
  int64_t longest_stream = 0;             // rows that one stream can have
  std::vector<ScriptedRequest> requests;  // by arrival
  int64_t failing_step = 0;               // counted from 1; 0: none
  uint64_t durations = 0;                 // seed of the steps' durations

  Time duration_of_step(int64_t step) const;  // 0.1 to 100 ms
};

Script make_script(uint64_t seed);

}  // namespace tandem::engine
