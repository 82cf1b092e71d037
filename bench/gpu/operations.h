// Launches of a forward pass, sorted into operations, with what each must move and compute.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "synthetic_rank.h"
#include "timing.h"

namespace tandem::bench {

struct Operation {
  std::string name;
  std::vector<TracedLaunch> launches;  // those that follow each other
};

// Consecutive launches of one operation; every launch of ops/linear is one by itself. `names`: of the linears in their
// order, where there are so many.
std::vector<Operation> operations_of(const std::vector<TracedLaunch>& launches, const std::vector<std::string>& names);

// Experts that the step's rows have chosen among those that are here.
struct ExpertCounts {
  int64_t pairs = 0, distinct = 0;
};
ExpertCounts count_experts(const SyntheticRank& rank);

// What the operation must at least move and compute in the rank's step, and the time that takes.
struct Floor {
  double bytes = 0, operations = 0, us = 0;
};
Floor floor_of(const Operation& operation, const SyntheticRank& rank, ExpertCounts experts, const Bench& bench);

}  // namespace tandem::bench
