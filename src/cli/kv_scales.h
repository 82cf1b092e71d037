// `tandem calibrate kv`, and where the scales that it measures are found again: --kv-scales.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "forward/text_model.h"
#include "model/checkpoint.h"
#include "model/shape.h"

namespace tandem::cli {

struct CalibrateKvOptions {
  std::filesystem::path model;             // empty: the bundled model
  std::string text;                        // --calibration; empty: calibration_text.jsonl of the model folder; -: stdin
  int64_t window = 2048;                   // --window, tokens
  int threads = 0;                         // --threads
  std::filesystem::path cache_dir;         // --cache-dir
  std::string nvfp4_nibble_order = "low";  // --nvfp4-nibble-order
  bool json = false;
};

// Measures, prints, and stores the scales where later starts of this model find them. Returns 0. Throws Error: usage
// where no text is given and the model folder has none that is made for it: its eval_text.jsonl is never taken, as what
// was calibrated on must not be evaluated on (spec/quantization.md 6.1).
int run_calibrate_kv(const CalibrateKvOptions& options);

// The scales of nvfp4 latents, for forward::Capacity::latent_scales; none for other types. kv_scales: "auto" (those
// that `tandem calibrate kv` stored for this model, if it did), "none" (every row has its own) or such a file.
// `with_mtp`: the checkpoint holds the MTP layer. Throws Error(bad_file) naming the file and what is wrong in it.
std::vector<float> stored_kv_scales(forward::CacheType type, const std::string& kv_scales,
                                    const std::filesystem::path& cache_dir, const std::filesystem::path& folder,
                                    const model::Checkpoint& checkpoint, const model::Shape& shape, bool with_mtp);

}  // namespace tandem::cli
