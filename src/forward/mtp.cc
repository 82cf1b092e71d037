// The MTP layer (spec/model.md 6).
#include <algorithm>

#include "base/error.h"
#include "forward/text_model_state.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"

namespace tandem::forward {

// The hidden that a row is paired with; null if it is not there any more.
const float* TextModel::State::mtp_input_hidden(const Step& step, const Segment& segment, int64_t row) {
  const HiddenSource source = hidden_source(step, segment, row);
  switch (source.place) {
    case HiddenPlace::none: return nullptr;
    case HiddenPlace::text_row: return scratch.hidden + source.index * shape.hidden_size;
    case HiddenPlace::head_ring: return slots.head_row(segment.slot, source.index);
    case HiddenPlace::chain: return scratch.mtp_last_hidden + segment.slot * shape.hidden_size;
  }
  return nullptr;
}

void TextModel::State::check_mtp(const Step& step) {
  if (mtp_layer.empty()) bad_step("an MTP step without an MTP layer");
  check(step, false);
  check_hidden_rows(step);
}

// u = eh_proj·[RMSNorm(embedding; enorm) ‖ RMSNorm(hidden; hnorm)], embedding half first.
template <typename HiddenOf>
void TextModel::State::mtp_enter(const Step& step, const HiddenOf& hidden_of, bool zero_first_embedding) {
  const model::MtpWeights& w = *weights.mtp;
  const int64_t width = shape.hidden_size;
  embed(step.tokens, 1, scratch.mtp_input, 2 * width);
  for (const Segment& segment : step.segments) {
    for (int64_t i = 0; i < segment.rows; ++i) {
      float* input = scratch.mtp_input + (segment.first_row + i) * 2 * width;
      if (zero_first_embedding && segment.position + i == 0) std::fill_n(input, width, 0.0f);
      ops::rms_norm(input, w.enorm.data(), shape.rms_norm_eps, width, input);
      ops::rms_norm(hidden_of(segment, i), w.hnorm.data(), shape.rms_norm_eps, width, input + width);
      ops::round_values(capacity.compute, ops::RoundingPoint::norm, input, 2 * width);
    }
  }
  ops::linear(threads, w.eh_proj, scratch.mtp_input, scratch.mtp_x, mtp_rows, capacity.compute);
}

template <typename SubLayer>
void TextModel::State::mtp_residual(const model::Vector& norm, const SubLayer& sub_layer) {
  const int64_t width = shape.hidden_size;
  for (int64_t row = 0; row < mtp_rows; ++row) {
    ops::rms_norm(scratch.mtp_x + row * width, norm.data(), shape.rms_norm_eps, width, scratch.x + row * width);
  }
  ops::round_values(threads, capacity.compute, ops::RoundingPoint::norm, scratch.x, mtp_rows * width);
  sub_layer(scratch.x, scratch.y);
  for (int64_t i = 0; i < mtp_rows * width; ++i) scratch.mtp_x[i] += scratch.y[i];
  ops::round_values(threads, capacity.compute, ops::RoundingPoint::mtp_residual, scratch.mtp_x, mtp_rows * width);
}

// From mtp_x to the logits, and what a chain goes on from.
void TextModel::State::mtp_rows_of(const Step& step, Probe* probe) {
  const bool chain = step.kind == StepKind::mtp_chain;
  const bool share = capacity.mtp_index_share && shape.index_share_for_mtp_iteration;
  Pass shared = pass(step, probe);
  if (share) shared.shared_selection = {scratch.mtp_selected, scratch.mtp_counts, chain};
  const PreparedLayer& layer = mtp_layer.front();
  const int64_t number = shape.num_hidden_layers, width = shape.hidden_size;
  mtp_residual(layer.weights->input_layernorm,
               [&](const float* x, float* y) { dsa_attention(shared, layer, number, x, y); });
  mtp_residual(layer.weights->post_attention_layernorm,
               [&](const float* x, float* y) { feed_forward(shared, layer, number, x, y); });
  for (int64_t row = 0; row < mtp_rows; ++row) {
    ops::rms_norm(scratch.mtp_x + row * width, weights.mtp->shared_head_norm.data(), shape.rms_norm_eps, width,
                  scratch.mtp_hidden + row * width);
  }
  ops::round_values(threads, capacity.compute, ops::RoundingPoint::norm, scratch.mtp_hidden, mtp_rows * width);
  for (const Segment& segment : step.segments) {
    const int64_t last = segment.rows - 1;
    std::copy_n(scratch.mtp_hidden + (segment.first_row + last) * width, width,
                scratch.mtp_last_hidden + segment.slot * width);
    ran_mtp(segment, step.kind);
  }
  logit_rows = static_cast<int64_t>(step.logit_rows.size());
  head(step, scratch.mtp_hidden, scratch.logits, false);
}

void TextModel::State::run_mtp_step(const Step& step, Probe* probe) {
  check_mtp(step);
  mtp_rows = static_cast<int64_t>(step.tokens.size());
  const auto hidden_of = [&](const Segment& segment, int64_t row) { return mtp_input_hidden(step, segment, row); };
  mtp_enter(step, hidden_of, capacity.mtp_zero_first_embedding);
  mtp_rows_of(step, probe);
}

void TextModel::State::run_mtp(const Step& step, std::span<const float> hidden_rows, bool zero_first_embedding,
                               Probe* probe) {
  if (mtp_layer.empty()) throw Error(ErrorCode::internal, "run_mtp", "the checkpoint has no MTP layer");
  if (step.kind == StepKind::mtp_chain) bad_step("hidden rows given for a chain");
  if (!step.samples.empty()) bad_step("samples of a model on a CPU");
  check(step, false);
  if (std::ssize(hidden_rows) < std::ssize(step.tokens) * shape.hidden_size) bad_step("fewer hidden rows than tokens");
  mtp_rows = std::ssize(step.tokens);
  const auto hidden_of = [&](const Segment& segment, int64_t row) {
    return hidden_rows.data() + (segment.first_row + row) * shape.hidden_size;
  };
  mtp_enter(step, hidden_of, zero_first_embedding);
  mtp_rows_of(step, probe);
}

}  // namespace tandem::forward
