// What a step must read and multiply, from the shape alone: the floor that speed is measured against.
#pragma once

#include <cstdint>

#include "forward/text_model.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::forward {

struct Cost {
  int64_t weight_bytes = 0;   // of every matrix that the step reads, once
  int64_t state_bytes = 0;    // each stream's own: KDA states, logs and convolution rows, latent rows, pooled keys
  int64_t multiply_adds = 0;  // of products and sums; exponentials, norms and softmaxes are not counted

  int64_t bytes() const { return weight_bytes + state_bytes; }
};

// `streams` streams: `rows` rows of each that start at `position`, logits for `logit_rows` of them. Weights are read
// once for all rows, a stream's state once for its own rows (KDA: once a block of 16; latent rows and pooled keys: once
// a row). A row reads num_experts_per_tok experts; how many different ones a step reads is taken as its most,
// min(experts, all rows·per_token).
Cost step_cost(const model::Shape& shape, const model::TextWeights& weights, int64_t position, int64_t rows,
               int64_t logit_rows, int64_t streams = 1);

// What each of two ranks gets from the other in such a step (the same for both; cluster/rank_group.h counts it).
struct ExchangeCost {
  int64_t exchanges = 0;
  int64_t bytes = 0;
};
ExchangeCost exchange_cost(const model::Shape& shape, const Ranks& ranks, int64_t position, int64_t rows,
                           int64_t logit_rows);

}  // namespace tandem::forward
