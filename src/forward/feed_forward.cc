// Dense MLP or mixture of experts (spec/model.md 5).
#include <limits>

#include "forward/pass.h"
#include "ops/linear/linear.h"
#include "ops/route/route.h"

namespace tandem::forward {

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
  if (layer.weights->moe) {
    const model::MoeWeights& w = *layer.weights->moe;
    ops::linear(pass.threads, w.gate, x, s.router, pass.rows());
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
    experts.experts = experts.routed_count = shape.n_routed_experts;
    experts.per_token = shape.num_experts_per_tok;
    experts.chosen = s.chosen;
    experts.weights = s.expert_weights;
  }
  ops::experts(pass.threads, experts);
}

}  // namespace tandem::forward
