// `tandem inspect`: what is in a model folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tandem::cli {

struct InspectOptions {
  std::filesystem::path model;             // a folder or a config.json; empty: the bundled model
  std::optional<double> bandwidth;         // --bandwidth, GB/s: the floor of a step
  int64_t context = 0;                     // --context: tokens before that step
  std::string kv_cache_dtype = "auto";     // --kv-cache-dtype of the floor; auto: bf16
  std::string nvfp4_nibble_order = "low";  // --nvfp4-nibble-order
  bool json = false;
};

// Returns 0. Throws Error: failed_check, after the report, if tensors are missing or wrong.
int run_inspect(const InspectOptions& options);

}  // namespace tandem::cli
