// Calibration text through one decoder layer at a time, so that a layer can be watched while those before it are
// already as they will be served (spec/quantization.md 2.1), in memory that does not grow with the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>

#include "device/threads.h"
#include "eval/input_moments.h"
#include "eval/quality_text.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::eval {

class LayerCalibration {
 public:
  // Keeps the streams of all tokens between two layers in a file without a name in `folder`: 4·hc_mult·hidden_size
  // bytes a token. `shape` and `windows` must outlive it. Throws Error(resource) if the file cannot be written.
  LayerCalibration(const model::Shape& shape, const Windows& windows, const std::filesystem::path& folder,
                   device::Threads& threads);
  ~LayerCalibration();
  LayerCalibration(const LayerCalibration&) = delete;
  LayerCalibration& operator=(const LayerCalibration&) = delete;

  // The layer that the text has come to, 0 at first.
  int64_t layer() const { return layer_; }

  // Runs the text through the layer as it is in `weights`, whole model's, and adds to the moments that have keys; the
  // text stays before the layer. Throws Error(bad_file) naming the layer where more than a tenth of the rows have
  // values that are not finite (2.1).
  void capture(const model::TextWeights& weights, RowWeight weight, std::map<InputKey, quant::Exl3Moments>& moments);
  // The same, and the text goes on behind the layer. Not of the last layer.
  void advance(const model::TextWeights& weights);
  // At the last layer: through it, the head's inputs, and the MTP layer of `weights`, if `moments` has keys of its own.
  void capture_end(const model::TextWeights& weights, RowWeight weight, std::map<InputKey, quant::Exl3Moments>& head,
                   std::map<InputKey, quant::Exl3Moments>& mtp);

 private:
  template <typename Chunk>
  void run(const model::TextWeights& weights, bool with_mtp, forward::Probe* probe, bool writes, const Chunk& after);
  void check(const std::map<InputKey, quant::Exl3Moments>& moments, const std::string& where) const;

  const model::Shape& shape_;
  const Windows& windows_;
  std::filesystem::path folder_;
  device::Threads& threads_;
  int file_ = -1;
  int64_t layer_ = 0;
};

}  // namespace tandem::eval
