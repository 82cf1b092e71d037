// Where activations are rounded to bf16 (spec/model.md 7.1; spec/speculation.md 1.3 to 1.6 for the drafter). GPUs keep
// activations as bf16; the CPU's bf16 mode keeps fp32 memory whose values are rounded at exactly these points, so that
// a GPU's operation can be compared with it to a few units in the last place. In fp32 mode nothing is rounded.
//
// What stays fp32 in bf16 mode, and why:
// * sums, their slices and leaves, and the leaf sums that two ranks exchange: a sum is rounded once, after leaf 0 +
//   leaf 1, so that one rank and two agree;
// * router logits, the index's head weights (weights_proj) and scores, expert weights: a rounding would change which
//   experts or pools are chosen where two are near; the head's logits: sampling compares them;
// * the mHC mapping with its Sinkhorn steps, post and comb: in bf16 row sums would be off by 3e-3, not
//   1e-5 (spec 7.2, R2);
// * the statistics of norms, softmaxes and their probabilities, the mean of the streams before the final norm: an
//   inner value of one kernel, which has it in fp32 anyway;
// * KDA after its convolution: normalised q and k (v has bf16 values), gates g and beta, the state and the log of k, G
//   and δ: errors would add up over the length of a stream;
// * gate and up of a feed-forward, the outputs of down and their weighted sum over experts: inner values, too;
// * pooled index keys until they become a cache's record (their means are of rounded keys and gates);
// * the drafter's selector edges and the unary terms, which are logits.
//
// Weights are used as they are stored; a matrix stored as F32 that GPUs multiply in bf16 is rounded once when the model
// is made (forward/rounded_weights.h). The router's gate and the mHC's fn are not: theirs are products of bf16 rows and
// weights as stored.
#pragma once

#include <cstdint>

#include "device/threads.h"

namespace tandem::ops {

// The arithmetic of activations (--compute).
enum class Compute { f32, bf16 };

enum class RoundingPoint {
  // The text model.
  embedding,      // rows of embed_tokens, everywhere; the table is BF16 or rounded to it, so nothing is left to do
  stream,         // residual streams after mhc_leave
  collapsed,      // Σ pre·stream, before the sub-layer's norm takes its statistics of the rounded values
  norm,           // the output of every RMSNorm and LayerNorm, heads' norms of the drafter included: rounded once
  linear,         // the output of every matrix product, but for what the list above keeps in fp32
  kda_conv,       // q, k, v after convolution and SiLU, before q and k are normalised
  kda_recurrent,  // o of the recurrence
  kda_gated,      // o after its norm and output gate
  absorbed,       // queries after Wkᵀ, [heads·kv_lora_rank]
  attended,       // latents after the softmax and the merge of leaves, [heads·kv_lora_rank]
  activation,     // silu(gate)·up of an expert or MLP, the drafter's too
  feed_forward,   // y of experts and MLP, after leaf 0 + leaf 1
  // The MTP layer; its other points are those above.
  mtp_residual,  // after the attention and after the feed-forward have been added
  // The DFlash2 drafter; its other points are embedding, norm, linear and activation.
  drafter_tap,        // mean of the target's streams
  drafter_conv,       // the convolution before a sub-layer
  drafter_rope,       // heads of q and k after their rotation
  drafter_attention,  // attention output, [query width]
  drafter_residual,   // x + convolution of the sub-layer's output: added in fp32, rounded once
};

// n values in place, to nearest, ties to even; infinities and NaN stay.
void round_to_bf16(float* values, int64_t n);

// The same in bf16 mode, nothing in fp32 mode. `point` says which point of the list this is.
inline void round_values(Compute compute, RoundingPoint /*point*/, float* values, int64_t n) {
  if (compute == Compute::bf16) round_to_bf16(values, n);
}
// The same, `count` values shared by all threads.
void round_values(device::Threads& threads, Compute compute, RoundingPoint point, float* values, int64_t count);

}  // namespace tandem::ops
