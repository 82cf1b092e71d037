// What configuration files say about how weights are stored. Tensors speak for themselves (spec/model.md 8.1); these
// keys are read to refuse what would be decoded wrongly without anybody noticing, and what contradicts the tensors
// (spec/quantization.md 1.9, 3.5, 7).
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "model/json_reader.h"

namespace tandem::model {

// The keys of `quantization_config`, or of quantization_config.json itself. Throws Error(bad_file) naming the key for a
// quant_method, codebook, tile_order or layout of EXL3 that is not known here, and for FP8 blocks of another size.
void check_quantization(const JsonObject& config, const std::string& where);

// Widths that files beside the weights state for EXL3 modules: `layer_bits` of config.json and `tensor_storage` of
// quantization_config.json. Both files may be absent.
class StatedWidths {
 public:
  // Throws Error(bad_file) for a file that is no JSON object or fails check_quantization.
  explicit StatedWidths(const std::filesystem::path& folder);

  // Throws Error(bad_file) naming the file and the key where the stored width of a module (its full name) contradicts
  // them. `expert` tells whether the module is a routed expert of `layer`: layer_bits speaks of those alone.
  void check(const std::string& module, int64_t layer, bool expert, int bits) const;

 private:
  std::string config_where_, storage_where_;
  std::unique_ptr<JsonDocument> config_, storage_;
};

}  // namespace tandem::model
