// `tandem doctor`: what this machine has for the program, and what to do where something is missing.
#pragma once

#include <string>

namespace tandem::cli {

struct DoctorOptions {
  std::string nvrtc;  // the compiler's library; empty: it is looked for
  bool json = false;
};

// Returns 0, whatever is missing: the program runs on a CPU alone.
int run_doctor(const DoctorOptions& options);

}  // namespace tandem::cli
