// What a step must read and multiply, from the shape alone: the floor that speed is measured against.
#pragma once

#include <cstdint>

#include "forward/text_model.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::forward {

struct Cost {
  int64_t weight_bytes = 0;   // of every matrix that the step reads, once
  int64_t state_bytes = 0;    // KDA states, latent rows, pooled keys, read once a row
  int64_t multiply_adds = 0;  // of products and sums; exponentials, norms and softmaxes are not counted

  int64_t bytes() const { return weight_bytes + state_bytes; }
};

// One stream: `rows` rows that start at `position`, logits for `logit_rows` of them. A row reads num_experts_per_tok
// experts; how many different ones a chunk reads is taken as its most, min(experts, rows·per_token).
Cost step_cost(const model::Shape& shape, const model::TextWeights& weights, int64_t position, int64_t rows,
               int64_t logit_rows);

// What each of two ranks gets from the other in such a step (the same for both; cluster/rank_group.h counts it).
struct ExchangeCost {
  int64_t exchanges = 0;
  int64_t bytes = 0;
};
ExchangeCost exchange_cost(const model::Shape& shape, const Ranks& ranks, int64_t position, int64_t rows,
                           int64_t logit_rows);

}  // namespace tandem::forward
