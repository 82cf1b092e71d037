// Kimi delta attention, top to bottom (spec/model.md 3).
#include <algorithm>
#include <array>

#include "forward/pass.h"
#include "ops/kda_block/kda_block.h"
#include "ops/kda_conv/kda_conv.h"
#include "ops/kda_conv/kda_output.h"
#include "ops/linear/linear.h"

namespace tandem::forward {
namespace {

void convolve(const Pass& pass, const PreparedLayer& layer, const Segment& segment, const Worker& worker) {
  const Scratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const int64_t row = segment.first_row, width = shape.kda_width();
  ops::KdaConv conv;
  conv.heads = shape.kda_num_heads;
  conv.dim = shape.kda_head_dim;
  conv.kernel = shape.short_conv_kernel_size;
  conv.position = segment.position;
  conv.rows = segment.rows;
  conv.raw = s.raw + row * 3 * width;
  conv.ring = pass.slots.conv_ring(segment.slot, layer.state_layer);
  conv.ring_rows = cache::ring_rows;
  conv.taps = layer.conv_taps.data();
  conv.f = s.f + row * width;
  conv.dt_bias = layer.weights->kda->dt_bias.data();
  conv.rate = layer.rate.data();
  conv.gate_lower_bound = shape.gate_lower_bound;
  conv.b = s.beta + row * shape.kda_num_heads;
  conv.q = s.q + row * width;
  conv.k = s.k + row * width;
  conv.v = s.v + row * width;
  conv.g = s.g + row * width;
  conv.compute = pass.compute;
  ops::kda_conv(worker.threads, conv);
}

void recur(const Pass& pass, const PreparedLayer& layer, const Segment& segment, const Worker& worker) {
  const Scratch& s = pass.scratch;
  const int64_t row = segment.first_row, width = pass.shape.kda_width();
  ops::KdaBlock block;
  block.heads = pass.shape.kda_num_heads;
  block.dim = pass.shape.kda_head_dim;
  block.position = segment.position;
  block.rows = segment.rows;
  block.certain_rows = segment.certain_rows;
  block.q = s.q + row * width;
  block.k = s.k + row * width;
  block.v = s.v + row * width;
  block.g = s.g + row * width;
  block.beta = s.beta + row * pass.shape.kda_num_heads;
  block.state = pass.slots.kda(segment.slot, layer.state_layer);
  block.working = s.working + worker.lane * width * block.dim;
  block.o = s.o + row * width;
  ops::kda_block(worker.threads, block);
}

// s.o of this rank's heads.
void run_heads(const Pass& pass, const PreparedLayer& layer, const float* x) {
  const model::KdaWeights& w = *layer.weights->kda;
  const Scratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  const int64_t hidden = shape.hidden_size, width = shape.kda_width(), dim = shape.kda_head_dim;

  const std::array<ops::LinearCall, 6> projections{{
      {&w.q_proj, x, hidden, s.raw, 3 * width, pass.compute},
      {&w.k_proj, x, hidden, s.raw + width, 3 * width, pass.compute},
      {&w.v_proj, x, hidden, s.raw + 2 * width, 3 * width, pass.compute},
      {&w.f_a_proj, x, hidden, s.low, 2 * dim, pass.compute},
      {&w.g_a_proj, x, hidden, s.low + dim, 2 * dim, pass.compute},
      {&w.b_proj, x, hidden, s.beta, shape.kda_num_heads, pass.compute},
  }};
  ops::linear(pass.threads, projections, pass.rows());
  const std::array<ops::LinearCall, 2> gates{{
      {&w.f_b_proj, s.low, 2 * dim, s.f, width, pass.compute},
      {&w.g_b_proj, s.low + dim, 2 * dim, s.gate, width, pass.compute},
  }};
  ops::linear(pass.threads, gates, pass.rows());

  for_segments(pass, [&](const Segment& segment, const Worker& worker) {
    convolve(pass, layer, segment, worker);
    recur(pass, layer, segment, worker);
  });

  if (pass.mutation == Mutation::silu_output_gate) std::copy_n(s.gate, pass.rows() * width, s.f);
  ops::kda_output(pass.threads, {shape.kda_num_heads, dim, pass.rows(), s.o, s.gate, w.o_norm.data(),
                                 shape.rms_norm_eps, pass.compute});
  if (pass.mutation == Mutation::silu_output_gate) {
    for (int64_t i = 0; i < pass.rows() * width; ++i) s.o[i] *= s.f[i];
  }
}

}  // namespace

void kda_attention(const Pass& pass, const PreparedLayer& layer, int64_t number, const float* x, float* y) {
  const int64_t rows = pass.rows();
  if (pass.probe != nullptr) pass.probe->inputs(number, LinearInput::attention, rows, pass.shape.hidden_size, x);
  if (pass.shape.kda_num_heads > 0) run_heads(pass, layer, x);
  if (pass.probe != nullptr)
    pass.probe->inputs(number, LinearInput::attention_output, rows, pass.shape.kda_width(), pass.scratch.o);
  project_heads(pass.threads, pass.group, layer.weights->kda->o_proj, pass.scratch.o,
                pass.group.parts[1].kda_heads.count > 0, rows, y, pass.compute);
}

}  // namespace tandem::forward
