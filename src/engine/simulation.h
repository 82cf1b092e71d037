// The scheduler under a virtual clock: a script of arrivals, disconnects, deadlines, step durations and failures, drawn
// from a seed, runs against FakeModel, and everything that must hold is checked after every step. One seed is one whole
// story, so a failure is replayed by its seed alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/fake_model.h"
#include "engine/scheduler_options.h"

namespace tandem::engine {

struct SimulationResult {
  std::string failure;  // what did not hold; empty: everything did
  int64_t requests = 0, steps = 0, preemptions = 0, evictions = 0, cached_tokens = 0, refused = 0;
  Time longest_wait{0};  // of the oldest request, between two of its rows
  int64_t head_only_steps = 0, moves_only_steps = 0, cancelled = 0, overdue = 0, failed = 0;
  int64_t drafted = 0, accepted = 0, invalid_proposals = 0;
};

// What stands between scheduler and model: a test may spoil steps there, to show that the simulation notices.
using SpoilStep = std::function<void(forward::Step&)>;

SimulationResult simulate(uint64_t seed, const SpoilStep& spoil = {});

}  // namespace tandem::engine
