// What became of drafts: decayed counts by source, position and confidence band, by which confidences are corrected
// (spec/speculation.md 5.5). Of the server, not of a stream: fixed memory, and the same corrections on every run with
// the same rounds.
#pragma once

#include <array>
#include <cstdint>

#include "draft/proposal.h"

namespace tandem::draft {

class AcceptanceStatistics {
 public:
  static constexpr int32_t bands = 8;            // of equal width over (0, 1]
  static constexpr double decay = 0.97;          // of what was counted before, at each new trial of its cell
  static constexpr double prior_weight = 4;      // trials that the confidence itself counts for
  static constexpr double least = 1.0 / 1024.0;  // of a corrected confidence

  // (accepted + prior_weight·prior) / (tried + prior_weight) of the cell that draft `position` (0 to most_drafts − 1)
  // of `source` with this raw confidence falls into; in [least, 1]. The prior is the raw confidence, or half way from
  // it to the share of all bands at this position if that is higher: a band of low confidences would else not be tried,
  // and so never be found to be better than it says.
  double corrected(Source source, int32_t position, double raw) const;
  // The drafts before this one were accepted, and this one was or was not.
  void add(Source source, int32_t position, double raw, bool accepted);

  // Time passes: counts fade a little, so that what was found bad once is tried again. Called once a round.
  void fade();

  // Sums without decay over all positions, of drafts verified.
  struct Total {
    int64_t rounds = 0, tried = 0, accepted = 0;
    std::array<int64_t, most_drafts> accepted_at{};
    double expected = 0;  // accepted drafts by the corrected confidences, to compare with `accepted` (5.5)
  };
  const Total& total(Source source) const { return totals_[static_cast<size_t>(source)]; }
  // A round of `tried` drafts of the proposal, whose confidence is corrected and whose raw ones are `raw`.
  void add_round(const Proposal& proposal, const std::array<double, most_drafts>& raw, int32_t tried, int32_t accepted);

 private:
  struct Cell {
    double tried = 0, accepted = 0;
  };
  double share_of_position(Source source, int32_t position) const;
  static size_t cell_of(Source source, int32_t position, double raw);

  std::array<Cell, size_t{sources} * most_drafts * bands> cells_{};
  int64_t rounds_ = 0;
  std::array<Total, sources> totals_{};
};

}  // namespace tandem::draft
