// The models of the golden vectors, loaded once for all tests of a program.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::forward {

inline const std::string golden = std::string(TANDEM_SOURCE_DIR) + "/tests/golden/";

struct Loaded {
  model::Shape shape;
  model::Checkpoint checkpoint;
  model::TextWeights weights;

  explicit Loaded(const std::string& folder)
      : shape(model::read_shape(folder)),
        checkpoint(model::Checkpoint::open(folder)),
        weights(model::load_text_weights(checkpoint, shape)) {}
};

inline const Loaded& loaded(const std::string& name) {
  static std::map<std::string, Loaded> models;
  const auto found = models.find(name);
  if (found != models.end()) return found->second;
  const std::string folder = name == "nano" ? std::string(TANDEM_SOURCE_DIR) + "/models/nano" : golden + name;
  return models.emplace(name, Loaded(folder)).first->second;
}

inline std::vector<int32_t> golden_ids(const std::string& model, const std::string& name) {
  const auto file = model::Checkpoint::open(golden + model + "/" + name + ".safetensors");
  const model::Tensor& ids = file.at("ids");
  std::vector<int32_t> out(static_cast<size_t>(ids.elements()));
  std::memcpy(out.data(), ids.data.data(), ids.data.size());
  return out;
}

}  // namespace tandem::forward
