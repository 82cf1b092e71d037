// Cuts a copy of the weights by walking the layout.
#include "model/split.h"

#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "model/weight_layout.h"

namespace tandem::model {
namespace {

class Cutter final : public WeightVisitor {
 public:
  Cutter(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

  void matrix(const WeightSpec& spec, Matrix& target) override {
    if (spec.split == Split::rows) {
      const Part part = part_of(spec.shape[0], spec.split_unit, rank_, ranks_);
      check_rows(spec, target, part);
      target = ops::rows_of(target, part.first, part.count);
    } else if (spec.split == Split::columns) {
      const Part part = part_of(spec.shape[1], spec.split_unit, rank_, ranks_);
      target = ops::columns_of(target, part.first, part.count);
    }
  }

  // A target may hold several tensors one after the other: the three convolutions.
  void vector(const WeightSpec& spec, Vector& target) override {
    auto& [read, own] = vectors_[&target];
    const int64_t width = std::accumulate(spec.shape.begin() + 1, spec.shape.end(), int64_t{1}, std::multiplies<>());
    Part part{0, spec.shape[0]};
    if (spec.split == Split::rows) part = part_of(spec.shape[0], spec.split_unit, rank_, ranks_);
    const auto first = target.begin() + read + part.first * width;
    own.insert(own.end(), first, first + part.count * width);
    read += spec.shape[0] * width;
  }

  void replace_vectors() {
    for (auto& [target, found] : vectors_) *target = std::move(found.second);
  }

 private:
  // Columns are cut where the leaves are, which the loader has checked.
  static void check_rows(const WeightSpec& spec, const Matrix& m, const Part& part) {
    if (m.format != ops::WeightFormat::exl3 || part.count == 0) return;
    const int64_t end = part.first + part.count;
    if (part.first % ops::exl3_block == 0 && (end % ops::exl3_block == 0 || end == m.out_features)) return;
    throw Error(ErrorCode::bad_file, spec.name,
                "EXL3, of which a rank would have outputs " + std::to_string(part.first) + " to " + std::to_string(end),
                "a cut at a multiple of 128, or one rank");
  }

  int rank_, ranks_;
  std::map<Vector*, std::pair<int64_t, Vector>> vectors_;  // values read so far, and those that stay
};

void keep_own_experts(LayerWeights& layer, const Part& part) {
  if (!layer.moe) return;
  std::vector<MlpWeights>& experts = layer.moe->experts;
  experts = {experts.begin() + part.first, experts.begin() + part.first + part.count};
}

}  // namespace

Part part_of(int64_t length, int64_t unit, int rank, int ranks) {
  if (ranks == 1) return {0, length};
  const int64_t half = first_half(length, unit);
  return rank == 0 ? Part{0, half} : Part{half, length - half};
}

RankParts parts_of_rank(const Shape& s, int rank, int ranks) {
  const auto part = [&](int64_t length, int64_t unit) { return part_of(length, unit, rank, ranks); };
  return {part(s.kda_num_heads, 1),          part(s.num_attention_heads, 1),
          part(s.n_routed_experts, 1),       part(s.intermediate_size, mlp_block),
          part(s.shared_width(), mlp_block), part(s.vocab_size, 1)};
}

Shape shape_of_rank(const Shape& shape, int rank, int ranks) {
  const RankParts parts = parts_of_rank(shape, rank, ranks);
  Shape own = shape;
  own.kda_num_heads = parts.kda_heads.count;
  own.num_attention_heads = parts.attention_heads.count;
  own.intermediate_size = parts.mlp_width.count;
  return own;
}

TextWeights split(const TextWeights& weights, const Shape& shape, int rank, int ranks) {
  TextWeights own = weights;
  if (ranks == 1) return own;
  Cutter cutter(rank, ranks);
  visit_main_weights(shape, own, cutter);
  if (own.mtp) visit_mtp_weights(shape, own, cutter);
  cutter.replace_vectors();
  const Part experts = parts_of_rank(shape, rank, ranks).experts;
  for (LayerWeights& layer : own.layers) keep_own_experts(layer, experts);
  if (own.mtp) keep_own_experts(own.mtp->layer, experts);
  return own;
}

}  // namespace tandem::model
