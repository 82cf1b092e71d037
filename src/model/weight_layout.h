// The one list of the text model's tensors: name, shape, component and leaf border of each (spec/model.md 1.1a, 8.1).
// The loader, the parameter count and the search for unknown tensors all walk it, so they cannot disagree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/shape.h"
#include "model/weights.h"

namespace tandem::model {

enum class Component {  // the rows of spec/model.md 1.3
  embedding,
  lm_head,
  kda,
  mla,
  indexer,
  mhc,
  layer_norms,
  dense_mlp,
  router,
  shared_expert,
  routed_experts,
  final_norm,
  mtp_eh_proj,
  mtp_norms,
};

struct WeightSpec {
  std::string name;  // under the hub's text prefix: "layers.3.mlp.gate.weight"; "lm_head.weight" has no prefix
  std::vector<int64_t> shape;  // as the hub stores it
  Component component = Component::embedding;
  int64_t layer = -1;        // -1 outside layers; num_hidden_layers for MTP
  int64_t leaf_columns = 0;  // matrices only; see ops::Matrix
};

class WeightVisitor {
 public:
  virtual ~WeightVisitor() = default;
  virtual void matrix(const WeightSpec& spec, Matrix& target) = 0;  // spec.shape is [out, in]
  virtual void vector(const WeightSpec& spec, Vector& target) = 0;  // appends its values to target
};

// Visits every weight of the main model in a fixed order, creating the entries of `weights` on the way.
void visit_main_weights(const Shape& shape, TextWeights& weights, WeightVisitor& visitor);

// Visits every weight of the MTP layer (layer num_hidden_layers); creates weights.mtp.
void visit_mtp_weights(const Shape& shape, TextWeights& weights, WeightVisitor& visitor);

}  // namespace tandem::model
