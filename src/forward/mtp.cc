// The MTP layer (spec/model.md 6).
#include <algorithm>

#include "base/error.h"
#include "forward/text_model_state.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"

namespace tandem::forward {

// u = eh_proj·[RMSNorm(embedding; enorm) ‖ RMSNorm(hidden; hnorm)], embedding half first.
void TextModel::State::mtp_enter(const Step& step, std::span<const float> hidden_rows, bool zero_first_embedding) {
  const model::MtpWeights& w = *weights.mtp;
  const int64_t width = shape.hidden_size;
  embed(step.tokens, 1, scratch.mtp_input, 2 * width);
  for (int64_t row = 0; row < mtp_rows; ++row) {
    float* input = scratch.mtp_input + row * 2 * width;
    if (zero_first_embedding && step.positions[static_cast<size_t>(row)] == 0) std::fill_n(input, width, 0.0f);
    ops::rms_norm(input, w.enorm.data(), shape.rms_norm_eps, width, input);
    ops::rms_norm(hidden_rows.data() + row * width, w.hnorm.data(), shape.rms_norm_eps, width, input + width);
  }
  ops::linear(threads, w.eh_proj, scratch.mtp_input, scratch.mtp_x, mtp_rows);
}

template <typename SubLayer>
void TextModel::State::mtp_residual(const model::Vector& norm, const SubLayer& sub_layer) {
  const int64_t width = shape.hidden_size;
  for (int64_t row = 0; row < mtp_rows; ++row) {
    ops::rms_norm(scratch.mtp_x + row * width, norm.data(), shape.rms_norm_eps, width, scratch.x + row * width);
  }
  sub_layer(scratch.x, scratch.y);
  for (int64_t i = 0; i < mtp_rows * width; ++i) scratch.mtp_x[i] += scratch.y[i];
}

void TextModel::State::run_mtp(const Step& step, std::span<const float> hidden_rows, bool zero_first_embedding,
                               Probe* probe) {
  if (mtp_layer.empty()) throw Error(ErrorCode::internal, "run_mtp", "the checkpoint has no MTP layer");
  check(step, false);
  mtp_rows = static_cast<int64_t>(step.tokens.size());
  mtp_logit_rows = static_cast<int64_t>(step.logit_rows.size());
  if (static_cast<int64_t>(hidden_rows.size()) < mtp_rows * shape.hidden_size)
    bad_step("fewer hidden rows than tokens");
  mtp_enter(step, hidden_rows, zero_first_embedding);
  const Pass shared = pass(step, probe);
  const PreparedLayer& layer = mtp_layer.front();
  const int64_t number = shape.num_hidden_layers;
  mtp_residual(layer.weights->input_layernorm,
               [&](const float* x, float* y) { dsa_attention(shared, layer, number, x, y); });
  mtp_residual(layer.weights->post_attention_layernorm,
               [&](const float* x, float* y) { feed_forward(shared, layer, number, x, y); });
  const int64_t width = shape.hidden_size;
  for (int64_t row = 0; row < mtp_rows; ++row) {
    ops::rms_norm(scratch.mtp_x + row * width, weights.mtp->shared_head_norm.data(), shape.rms_norm_eps, width,
                  scratch.mtp_hidden + row * width);
  }
  head(step, scratch.mtp_hidden, scratch.mtp_logits, false);
}

}  // namespace tandem::forward
