// `tandem quantize`: a model folder with its weights in FP8 or NVFP4.
#pragma once

#include <filesystem>
#include <string>

namespace tandem::cli {

struct QuantizeCommandOptions {
  std::filesystem::path model, out;              // model: empty for the bundled one
  std::string experts = "keep", dense = "keep";  // or fp8; experts also nvfp4
  int threads = 0;                               // --threads; 0: one for each core
  bool json = false;
};

// Returns 0. Throws Error.
int run_quantize(const QuantizeCommandOptions& options);

}  // namespace tandem::cli
