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

// How a weight is shared by ranks (spec/model.md 10.1, design.md 1): what is cut, always between units.
enum class Split {
  replicated,
  rows,     // outputs: heads, blocks of MLP width, ids of the vocabulary
  columns,  // inputs: the sum is made of two leaves
  experts,  // whole on one rank
};

constexpr int64_t mlp_block = 128;  // MLP width is shared in blocks of this size: those of FP8 scales

struct WeightSpec {
  std::string name;  // under the hub's text prefix: "layers.3.mlp.gate.weight"; "lm_head.weight" has no prefix
  std::vector<int64_t> shape;  // as the hub stores it
  Component component = Component::embedding;
  int64_t layer = -1;        // -1 outside layers; num_hidden_layers for MTP
  int64_t leaf_columns = 0;  // matrices only; see ops::Matrix
  Split split = Split::replicated;
  int64_t split_unit = 1;  // rows or columns that stay together
};

// What the first of two ranks has of `length` rows or columns: the first ⌈U/2⌉ of its units.
int64_t first_half(int64_t length, int64_t unit);

class WeightVisitor {
 public:
  virtual ~WeightVisitor() = default;
  virtual void matrix(const WeightSpec& spec, Matrix& target) = 0;  // spec.shape is [out, in]
  virtual void vector(const WeightSpec& spec, Vector& target) = 0;  // appends its values to target
};

// Visits every weight of the main model in a fixed order, creating the entries of `weights` that are not there yet.
void visit_main_weights(const Shape& shape, TextWeights& weights, WeightVisitor& visitor);

// Visits every weight of the MTP layer (layer num_hidden_layers); creates weights.mtp if it is not there yet.
void visit_mtp_weights(const Shape& shape, TextWeights& weights, WeightVisitor& visitor);

}  // namespace tandem::model
