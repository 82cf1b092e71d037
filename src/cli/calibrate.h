// `tandem calibrate timing`: what the pieces of a round cost on this machine (spec/speculation.md 5.3).
#pragma once

#include "cli/loaded_model.h"

namespace tandem::cli {

struct CalibrateOptions {
  LoadOptions load;
  bool json = false;
};

// Measures, prints, and stores the table where later starts with the same settings find it. Returns 0. Throws Error.
int run_calibrate_timing(const CalibrateOptions& options);

}  // namespace tandem::cli
