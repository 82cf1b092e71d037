// Dense MLP or mixture of experts (spec/model.md 5).
#include <iterator>
#include <limits>

#include "forward/pass.h"
#include "ops/linear/linear.h"
#include "ops/route/route.h"

namespace tandem::forward {
namespace {

// Each rank sums its leaf; a row's leaves follow from its experts, which all ranks know.
void add_over_ranks(const Pass& pass, ops::Experts& experts, float* y) {
  const Group& group = pass.group;
  const int64_t size = experts.rows * experts.hidden;
  const bool dense = experts.experts == 0;
  bool shared[2];
  for (size_t leaf = 0; leaf < 2; ++leaf)
    shared[leaf] = (dense ? group.parts[leaf].mlp_width : group.parts[leaf].shared_width).count > 0;
  experts.y = group.mine(size);
  ops::experts_leaf(pass.threads, experts, group.ranks.rank);
  group.gather(size);
  add_leaves(pass.threads, group, experts.rows, experts.hidden, y, [&](int64_t row, int64_t leaf) {
    return ops::has_leaf(experts.chosen + row * experts.per_token, experts.per_token, experts.experts, shared[leaf],
                         leaf);
  });
  ops::round_values(pass.threads, pass.compute, ops::RoundingPoint::feed_forward, y, size);
}

}  // namespace

void feed_forward(const Pass& pass, const PreparedLayer& layer, int64_t number, const float* x, float* y) {
  const Scratch& s = pass.scratch;
  const model::Shape& shape = pass.shape;
  ops::Experts experts;
  experts.hidden = shape.hidden_size;
  experts.swiglu_limit =
      pass.mutation == Mutation::no_swiglu_clamp ? std::numeric_limits<float>::infinity() : shape.swiglu_limit;
  experts.shared = layer.has_shared ? &layer.shared : nullptr;
  experts.rows = pass.rows();
  experts.x = x;
  experts.y = y;
  experts.scratch = &pass.expert_scratch;
  experts.compute = pass.compute;
  if (pass.probe != nullptr) pass.probe->inputs(number, LinearInput::feed_forward, pass.rows(), shape.hidden_size, x);
  if (layer.weights->moe) {
    const model::MoeWeights& w = *layer.weights->moe;
    ops::linear(pass.threads, w.gate, x, s.router, pass.rows());  // fp32 (ops/rounding.h)
    ops::Route route;
    route.experts = shape.n_routed_experts;
    route.per_token = shape.num_experts_per_tok;
    route.normalise = shape.norm_topk_prob;
    route.routed_scaling_factor = shape.routed_scaling_factor;
    route.bias = w.e_score_correction_bias.data();
    route.rows = pass.rows();
    route.logits = s.router;
    route.chosen = s.chosen;
    route.weights = s.expert_weights;
    route.gaps = s.gaps;
    ops::route(route);
    if (pass.probe != nullptr) {
      pass.probe->routing(number, pass.rows(), route.per_token, s.chosen, s.expert_weights, s.gaps);
    }
    experts.routed = layer.routed.data();
    experts.experts = shape.n_routed_experts;
    experts.first_routed = pass.group.own().experts.first;
    experts.routed_count = std::ssize(layer.routed);
    experts.per_token = shape.num_experts_per_tok;
    experts.chosen = s.chosen;
    experts.weights = s.expert_weights;
  }
  if (pass.group.alone()) return ops::experts(pass.threads, experts);
  add_over_ranks(pass, experts, y);
}

}  // namespace tandem::forward
