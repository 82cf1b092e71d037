// `tandem quantize` and `tandem verify`: a model folder with its weights in FP8, NVFP4 or EXL3, and whether such a
// folder is still as it was written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tandem::cli {

// Text that EXL3 is encoded for.
struct CalibrationText {
  std::vector<std::string> files;  // --calibration; empty: calibration_text.jsonl of the model; "none": no text
  int64_t tokens = 0;              // --calibration-tokens: the first so many; 0: all
};

struct QuantizeCommandOptions {
  std::filesystem::path model, out;                             // model: empty for the bundled one
  std::string experts = "keep", dense = "keep", head = "keep";  // keep or bf16, fp8, nvfp4, exl3:N
  std::string codebook = "mul1";                                // mul1, mcg, 3inst
  std::string layout = "exl3";                                  // or tr3
  std::string out_scales = "always";                            // never, auto
  std::string scale_search = "full";                            // small, none
  double bits_target = 0;                                       // 0: none
  uint64_t seed = 0;
  int64_t window = 2048;
  CalibrationText calibration;
  int threads = 0;  // --threads; 0: one for each core
  bool json = false;
};

// Returns 0. Throws Error.
int run_quantize(const QuantizeCommandOptions& options);

struct VerifyOptions {
  std::filesystem::path folder;
  int64_t recheck = 0;          // matrices to encode again
  uint64_t seed = 0;            // which
  std::filesystem::path model;  // --model, of recheck
  CalibrationText calibration;
  int threads = 0;
  bool json = false;
};

// Returns 0, or the status of a failed check where something differs, naming all of it. Throws Error.
int run_verify(const VerifyOptions& options);

}  // namespace tandem::cli
