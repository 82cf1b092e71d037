// What happens in a simulation, drawn from its seed before it starts.
#pragma once

#include <cstdint>
#include <vector>

#include "draft/drafter.h"
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
  bool has_drafter = false;
  uint64_t drafts = 0;       // seed of what it proposes
  int64_t right_drafts = 0;  // of 100

  Time duration_of_step(int64_t step) const;  // 0.1 to 100 ms
  void propose(const draft::StreamView& view, draft::Proposal& proposal) const;
};

Script make_script(uint64_t seed);

}  // namespace tandem::engine
