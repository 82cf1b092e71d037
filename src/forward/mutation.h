// Deliberate mistakes, for tests of the tests: each must make parity with the reference fail (tests/parity). Never set
// in serving.
#pragma once

namespace tandem::forward {

enum class Mutation {
  none,
  no_swiglu_clamp,   // gate and up unclamped
  transposed_mixer,  // comb applied along the wrong axis
  no_sinkhorn,       // comb left after its softmax
  no_tail,           // the unfinished pool is not attended to
  silu_output_gate,  // SiLU in place of the sigmoid in KDA's output gate
};

}  // namespace tandem::forward
