// Which tokens a row attends to: the best pools by score and the unfinished pool (spec/model.md 4.5).
#pragma once

#include <cstdint>
#include <span>

#include "device/threads.h"
#include "ops/latent/pages.h"

namespace tandem::ops {

// One segment. Scores are computed only for rows that see more pools than the budget.
struct IndexSelect {
  int64_t heads = 0, dim = 0, kpool = 0;
  int64_t budget = 0;  // pools: index_topk / index_kpool
  int64_t position = 0, rows = 0;
  float* q = nullptr;  // [rows, heads·dim]; against FP8 keys rotated and rounded in place (spec 4.6)
  float* head_weights =
      nullptr;                  // [rows, heads] weights_proj x; scaled in place by heads^-0.5 (and the queries' scales)
  PagedPlane pooled;            // row p = key of pool p
  int64_t max_pools = 0;        // capacity of a score row: pools that are here
  float* scores = nullptr;      // scratch [threads, max_pools]
  int32_t* order = nullptr;     // scratch [threads, max_pools]
  int32_t* selected = nullptr;  // out [rows, max_selected] token positions, ascending
  int64_t max_selected = 0;     // (budget + 1)·kpool − 1
  int32_t* counts = nullptr;    // out [rows]
  float* gaps = nullptr;        // optional out [rows]: score distance at the cut, +inf where nothing was cut
};
void index_select(device::Threads& threads, const IndexSelect& args);

// The same for ranks that hold the pools of their own pages (`pooled`): each finds its candidates, all candidates are
// exchanged, and every rank makes the same choice from them. Exact: a pool among the best budget + 1 of all is among
// the best budget + 1 of its rank.
//
// Candidates of a row: budget + 1 scores, then as many pool ids as bits. Rows that see no more pools than the budget
// have none.
constexpr int64_t index_candidates_size(int64_t budget) { return 2 * (budget + 1); }
bool index_needs_scores(const IndexSelect& args);  // any row of the segment
// out [rows, index_candidates_size()].
void index_candidates(device::Threads& threads, const IndexSelect& args, float* out);
// candidates[i]: those of rank i, [rows, index_candidates_size()]. max_pools must hold ranks·(budget + 1) entries.
void index_choose(device::Threads& threads, const IndexSelect& args, std::span<const float* const> candidates);

// Tokens of `pools` (ascending pool ids) and the tail of position t, ascending; returns their number.
int64_t expand_selection(const int32_t* pools, int64_t count, int64_t t, int64_t kpool, int32_t* out);

}  // namespace tandem::ops
