// `tandem kernels build` and `tandem kernels list`: machine code of the GPU kernels, made ahead of time.
#pragma once

#include <filesystem>
#include <string>

namespace tandem::cli {

struct KernelsOptions {
  std::filesystem::path model;  // whose dimensions kernels are specialised on; empty: the bundled model
  std::string arch;             // "sm_90a,sm_120a" or "all"; empty: every GPU of this machine
  std::filesystem::path out;    // of build; empty: the kernel cache
  std::string nvrtc;            // the compiler's library; empty: it is looked for
  int threads = 0;              // that compile at a time; 0: one for each core
  bool json = false;
};

// Returns 0. Throws Error: usage for a target that is none, resource without a compiler, internal for a source that
// does not compile.
int run_kernels_build(const KernelsOptions& options);
// What the program holds, and for which targets machine code is in the cache. Needs no compiler.
int run_kernels_list(const KernelsOptions& options);

}  // namespace tandem::cli
