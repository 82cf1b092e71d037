// The outer scales of NVFP4 latent rows: the largest |latent| of every layer with a cache over a text, after its norm,
// and the file that keeps them (spec/quantization.md 5.4). The scale is fixed by the largest value alone: larger powers
// of two only shift the exponents of the groups' own scales, so that no search among them can lower the error, and
// smaller ones saturate. What is left is measured and reported: the error of stored rows with the calibrated scale, and
// with the scale that each row has without it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/quality_text.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::eval {

struct KvCalibration {
  struct Layer {
    int64_t layer = 0;  // of the model; the MTP layer's number is num_hidden_layers
    float absolute_max = 0;
    float scale = 0;  // 2^ceil(log2(absolute_max / 2688))
    // ‖stored − row‖ / ‖row‖ over the sampled rows, with `scale` and with every row's own; 0 in a calibration that was
    // read from a file.
    double error = 0, row_scale_error = 0;
  };
  std::vector<Layer> layers;  // DSA layers in order, then the MTP layer, if the checkpoint holds it
  int64_t tokens = 0;
  int64_t sampled_rows = 0;  // of each layer, evenly over the text: 1024 to 2047, or all of a shorter one
  std::string token_sha256;

  std::vector<float> scales() const;  // forward::Capacity::latent_scales
};

// Called after each window with the number of those done.
using KvProgress = std::function<void(size_t)>;

// Runs all windows; the MTP layer sees each row with the token after it. The same for any number of threads. Throws
// Error(bad_file) where a layer's latents are all 0 or not finite.
KvCalibration calibrate_kv(const model::Shape& shape, const model::TextWeights& weights, int threads,
                           const Windows& windows, const KvProgress& progress = {});

// One JSON object. `key` names the model.
std::string kv_calibration_json(const KvCalibration& calibration, std::string_view key);
// Throws Error(bad_file) naming `where` and the key of what is wrong: another model's file, a layer that is missing, a
// scale that does not follow from its maximum.
KvCalibration parse_kv_calibration(std::string_view text, const std::string& where, std::string_view key,
                                   const model::Shape& shape, bool with_mtp);

}  // namespace tandem::eval
