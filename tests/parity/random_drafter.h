// A DFlash2 drafter for any model: shape and weights drawn from a seed, in memory. What it proposes is mostly wrong,
// and everything around it must bear that.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "model/drafter.h"
#include "model/shape.h"

namespace tandem::parity {

class RandomDrafter {
 public:
  RandomDrafter(uint64_t seed, const model::Shape& target);
  RandomDrafter(const RandomDrafter&) = delete;  // the weights are views into it

  const model::DrafterShape& shape() const { return shape_; }
  const model::DrafterWeights& weights() const { return weights_; }

 private:
  std::deque<std::vector<float>> values_;
  model::DrafterShape shape_;
  model::DrafterWeights weights_;
};

}  // namespace tandem::parity
