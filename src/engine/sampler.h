// SELECT: one logits row to one token, the request's whole sampling rule (spec/speculation.md 3.1, 3.5; decisions.md
// "sampling order"). A pure function of the row, the parameters and the position, so that drafting, batching and replay
// cannot change it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/keyed_noise.h"
#include "draft/proposal.h"
#include "engine/engine.h"

namespace tandem::engine {

// Below this temperature a request is greedy.
inline constexpr double greedy_temperature = 1e-5;

// A token chosen from a row, and what share of the row's probability it has.
struct Picked {
  int32_t token = 0;
  double probability = 1;
};

// What ratio verification made of a draft.
struct RatioChoice {
  int32_t token = 0;
  bool accepted = false;  // the draft is the token
};

// Which tokens of the row may be chosen.
struct AllowedTokens {
  int32_t size = 0;                 // ids >= size have no text (padding rows of the head) and are never sampled
  std::span<const int32_t> masked;  // also not these (min_tokens: the stop ids); ids outside [0, size) are ignored
};

class Sampler {
 public:
  // Rows have `vocab_size` logits. Everything is allocated here; select() allocates nothing.
  explicit Sampler(int32_t vocab_size);

  // Chooses the token for absolute position `position` (the index that the token will have in the stream; the prompt's
  // length for the first reply token). `logits` is one row [vocab_size]; -inf means masked. Throws Error(internal) for
  // NaN or +inf anywhere in the row, or when no token is allowed.
  //
  // Greedy: the largest logit, ties to the smaller id. Otherwise, with x = logit / temperature in float64 and tokens
  // ordered by (logit descending, id ascending):
  //   top_k  keeps the first top_k tokens (0: all);
  //   top_p  (below 1) gives every kept token the integer mass floor(2^40 · e^(x − max x)), max over the whole row, so
  //   that sums
  //          do not depend on their order (V · 2^40 < 2^58 for V = 154,880), and keeps the shortest prefix whose mass
  //          reaches ⌈top_p · total mass of the kept tokens⌉;
  //   min_p  (above 0) drops tokens with x < max x + ln(min_p);
  //   the result is the argmax of x − ln(−ln u), u = keyed_uniform(seed, position, id), ties to the first in the order.
  int32_t select(std::span<const float> logits, const SamplingParams& params, int64_t position,
                 const AllowedTokens& allowed);

  // select(), and the token's probability after temperature and filters (greedy: at temperature 1, over the whole row).
  Picked pick(std::span<const float> logits, const SamplingParams& params, int64_t position,
              const AllowedTokens& allowed);
  // A draft drawn from the best 16 of the row's distribution after temperature and filters, with noise that nothing
  // else uses, and that distribution. Greedy: the best token, which is no draw.
  Picked draw_draft(std::span<const float> logits, const SamplingParams& params, int64_t position,
                    const AllowedTokens& allowed, draft::DraftDistribution& drawn_from);
  // Ratio verification of one draft (spec/speculation.md 3.4): with p the row's distribution after temperature and
  // filters and q the one that the draft was drawn from (all its mass on the draft if it was no draw), the draft is
  // accepted with probability min(1, p/q), else the token is drawn from max(p − q, 0). The token's distribution is p
  // either way. Its uniform and its noise are keyed by (seed, position), apart from those of select(). Greedy rows are
  // verified exactly.
  RatioChoice verify_ratio(std::span<const float> logits, const SamplingParams& params, int64_t position,
                           const AllowedTokens& allowed, int32_t draft, const draft::DraftDistribution& drawn_from);

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  static bool before(const Candidate& a, const Candidate& b);

  static int32_t largest_of(std::span<const float> logits, int64_t size);
  void collect(std::span<const float> logits, const AllowedTokens& allowed);
  void keep_top_k(int64_t count);
  void keep_top_p(double top_p, double temperature);
  void keep_min_p(double min_p, double temperature);
  // Filters the row and leaves the probabilities of the candidates, which are then in ascending order of ids.
  void make_distribution(std::span<const float> logits, const SamplingParams& params, const AllowedTokens& allowed);
  // The largest of ln(weight) + noise over the candidates; −1 if no weight is positive.
  int32_t draw(std::span<const double> weights, uint64_t seed, int64_t position) const;
  int32_t argmax_with_noise(const SamplingParams& params, int64_t position) const;

  std::vector<uint8_t> is_masked_;     // [vocab_size]
  std::vector<Candidate> candidates_;  // capacity vocab_size
  Candidate best_{};                   // first of all allowed tokens in the order
  std::vector<double> probabilities_;  // of the candidates; capacity vocab_size
  std::vector<double> residual_;       // the same
};

}  // namespace tandem::engine
