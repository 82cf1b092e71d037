// `tandem bench replay`: a recorded list of steps once more, without engine and HTTP.
#pragma once

#include <filesystem>
#include <string>

namespace tandem::cli {

struct BenchReplayOptions {
  std::filesystem::path file;                // made by serve --record-steps
  std::filesystem::path model;               // the model folder that it was made with; empty: the bundled model
  std::filesystem::path drafter_model = {};  // --drafter-model of a recording with DFlash2; empty: <MODEL>-dflash2
  int threads = 0;                           // --threads
  std::string nvfp4_nibble_order = "low";    // --nvfp4-nibble-order
  bool json = false;
};

// Prints steps and rows a second. Returns 0. Throws Error: failed_check at the first step whose logits differ from the
// recorded ones, bad_file for a damaged recording, one without a whole step, one that contradicts itself or is of
// another model, does_not_fit before anything of its sizes is allocated.
int run_bench_replay(const BenchReplayOptions& options);

}  // namespace tandem::cli
