// A rank's part of the model: which heads, experts, blocks of MLP width and vocabulary rows it has (design.md 1, "two
// leaves"; spec/model.md 10.1). The rules stand beside the tensors in weight_layout.cc.
#pragma once

#include <cstdint>

#include "model/shape.h"
#include "model/weights.h"

namespace tandem::model {

// Of `length` rows or columns in units of `unit`: rank 0 has the first ⌈U/2⌉ units, rank 1 the others, maybe none; a
// rank alone has everything. ranks is 1 or 2.
struct Part {
  int64_t first = 0, count = 0;
  bool holds(int64_t index) const { return index >= first && index < first + count; }
};
Part part_of(int64_t length, int64_t unit, int rank, int ranks);

// The parts whose sizes differ from the whole model's.
struct RankParts {
  Part kda_heads, attention_heads, experts, mlp_width, shared_width, vocabulary;
};
RankParts parts_of_rank(const Shape& shape, int rank, int ranks);

// The shape with this rank's heads and dense MLP width; everything else, experts and vocabulary included, is the whole
// model's.
Shape shape_of_rank(const Shape& shape, int rank, int ranks);

// Views of this rank's part of every weight: matrices are not copied, vectors are. MoeWeights::experts has this rank's
// experts only. A part may be empty (out_features or in_features 0).
TextWeights split(const TextWeights& weights, const Shape& shape, int rank, int ranks);

}  // namespace tandem::model
