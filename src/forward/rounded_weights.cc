// Finds the matrices by walking the layout; each is rounded row by row.
#include "forward/rounded_weights.h"

#include <cstring>
#include <vector>

#include "model/weight_layout.h"

namespace tandem::forward {
namespace {

class F32Matrices final : public model::WeightVisitor {
 public:
  std::vector<ops::Matrix*> found;

  void matrix(const model::WeightSpec& spec, ops::Matrix& target) override {
    const bool kept = spec.component == model::Component::router || spec.component == model::Component::mhc;
    if (!kept && target.format == ops::WeightFormat::f32) found.push_back(&target);
  }
  void vector(const model::WeightSpec& /*spec*/, model::Vector& /*target*/) override {}
};

std::vector<ops::Matrix*> f32_matrices(const model::Shape& shape, model::TextWeights& weights) {
  F32Matrices visitor;
  model::visit_main_weights(shape, weights, visitor);
  if (weights.mtp) model::visit_mtp_weights(shape, weights, visitor);
  return visitor.found;
}

std::vector<ops::Matrix*> f32_matrices(model::DrafterWeights& weights) {
  std::vector<ops::Matrix*> all = {&weights.fc, &weights.hidden_projection, &weights.predecessor_codebook,
                                   &weights.successor_codebook};
  for (model::DrafterLayer& layer : weights.layers) {
    all.insert(all.end(),
               {&layer.q_proj, &layer.k_proj, &layer.v_proj, &layer.o_proj, &layer.gate_proj, &layer.up_proj,
                &layer.down_proj, &layer.attention_conv.kernel_projection, &layer.mlp_conv.kernel_projection});
  }
  std::erase_if(all, [](const ops::Matrix* m) { return m->format != ops::WeightFormat::f32; });
  return all;
}

int64_t bytes_of(std::span<ops::Matrix* const> matrices) {
  int64_t values = 0;
  for (const ops::Matrix* m : matrices) values += m->out_features * m->in_features;
  return 2 * values;
}

// The rows of m, one after the other, to `out`.
void round_matrix(const ops::Matrix& m, std::byte* out) {
  std::vector<float> row(static_cast<size_t>(m.in_features));
  for (int64_t o = 0; o < m.out_features; ++o) {
    std::memcpy(row.data(), m.data + 4 * o * m.stride(), 4 * row.size());
    ops::round_to_bf16(row.data(), m.in_features);
    for (const float value : row) {
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      const auto half = static_cast<uint16_t>(bits >> 16);
      std::memcpy(out, &half, 2);
      out += 2;
    }
  }
}

}  // namespace

void RoundedMatrices::replace(std::span<ops::Matrix* const> matrices) {
  memory_ = device::HostMemory(bytes_of(matrices), "weights rounded to bf16", "--compute f32");
  std::byte* at = memory_.data();
  for (ops::Matrix* m : matrices) {
    round_matrix(*m, at);
    m->format = ops::WeightFormat::bf16;
    m->data = at;
    m->row_stride = 0;
    at += 2 * m->out_features * m->in_features;
  }
}

void RoundedMatrices::replace(const model::Shape& shape, model::TextWeights& weights) {
  replace(f32_matrices(shape, weights));
}

model::DrafterWeights RoundedMatrices::replaced(const model::DrafterWeights& weights, ops::Compute compute) {
  model::DrafterWeights own = weights;
  const std::vector<ops::Matrix*> matrices = f32_matrices(own);
  if (compute == ops::Compute::bf16 && !matrices.empty()) replace(matrices);
  return own;
}

int64_t rounded_bytes(const model::Shape& shape, const model::TextWeights& weights) {
  model::TextWeights own = weights;
  return bytes_of(f32_matrices(shape, own));
}

}  // namespace tandem::forward
