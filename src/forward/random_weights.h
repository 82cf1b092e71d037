// Weights for a shape of which no checkpoint is at hand: random bf16 values of the size that a trained matrix has
// (variance 1 / inputs). Matrices with the same number of inputs are windows into one block of values, each at its own
// offset, so that 288 experts of real widths cost the memory of the largest of their kind.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <string_view>
#include <vector>

#include "model/weight_layout.h"
#include "ops/test_random.h"

namespace tandem::forward {

class RandomWeights : private model::WeightVisitor {
 public:
  // With the MTP layer if the shape has one.
  explicit RandomWeights(const model::Shape& shape) {
    for (const bool filling : {false, true}) {
      filling_ = filling;
      weights_ = {};
      model::visit_main_weights(shape, weights_, *this);
      if (shape.num_nextn_predict_layers > 0) model::visit_mtp_weights(shape, weights_, *this);
      if (filling) break;
      for (auto& [inputs, block] : blocks_) fill(inputs, block);
    }
  }
  RandomWeights(const RandomWeights&) = delete;
  RandomWeights& operator=(const RandomWeights&) = delete;

  const model::TextWeights& weights() const { return weights_; }

 private:
  static constexpr size_t offsets = 1 << 16;  // in units of 8 values

  static bool ends_with(std::string_view name, std::string_view end) {
    return name.size() >= end.size() && name.substr(name.size() - end.size()) == end;
  }

  // Uniform in ±sqrt(3 / inputs): 16 random bits a value.
  static void fill(int64_t inputs, std::vector<uint16_t>& block) {
    const float scale = std::sqrt(3.0f / static_cast<float>(inputs)) / 32768.0f;
    ops::test::Random random(static_cast<uint64_t>(inputs));
    uint64_t bits = 0;
    for (size_t i = 0; i < block.size(); ++i, bits >>= 16) {
      if (i % 4 == 0) bits = random.bits();
      const float value = static_cast<float>(static_cast<int16_t>(bits & 0xffffu)) * scale;
      block[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    }
  }

  void matrix(const model::WeightSpec& spec, model::Matrix& target) override {
    const int64_t rows = spec.shape[0], inputs = spec.shape[1];
    std::vector<uint16_t>& block = blocks_[inputs];
    if (!filling_) {
      const size_t needed = static_cast<size_t>(rows * inputs) + 8 * offsets;
      if (block.size() < needed) block.resize(needed);
      return;
    }
    const size_t offset = placing_.bits() % offsets * 8;
    target.format = ops::WeightFormat::bf16;
    target.data = reinterpret_cast<const std::byte*>(block.data() + offset);
    target.out_features = rows;
    target.in_features = inputs;
    target.leaf_columns = spec.leaf_columns;
  }

  // Norms around 1; A_log in [0, 1.5]; everything else around 0.
  void vector(const model::WeightSpec& spec, model::Vector& target) override {
    if (!filling_) return;
    float middle = 0.0f, reach = 0.5f;
    if (ends_with(spec.name, "norm.weight")) middle = 1.0f, reach = 0.2f;
    if (ends_with(spec.name, "A_log")) middle = 0.75f, reach = 0.75f;
    if (ends_with(spec.name, "e_score_correction_bias")) reach = 0.02f;
    int64_t count = 1;
    for (const int64_t dimension : spec.shape) count *= dimension;
    for (int64_t i = 0; i < count; ++i) target.push_back(placing_.uniform(middle - reach, middle + reach));
  }

  bool filling_ = false;
  ops::test::Random placing_{1};
  std::map<int64_t, std::vector<uint16_t>> blocks_;  // by inputs
  model::TextWeights weights_;
};

}  // namespace tandem::forward
