// Decayed counts and the corrections made of them.
#include "draft/acceptance.h"

#include <algorithm>

namespace tandem::draft {

size_t AcceptanceStatistics::cell_of(Source source, int32_t position, double raw) {
  const int32_t place = std::clamp(position, 0, most_drafts - 1);
  const int32_t band = raw > 0 ? std::min(bands - 1, static_cast<int32_t>(std::min(raw, 1.0) * bands)) : 0;  // NaN: 0
  const auto row = static_cast<size_t>(source) * most_drafts + static_cast<size_t>(place);
  return row * bands + static_cast<size_t>(band);
}

double AcceptanceStatistics::corrected(Source source, int32_t position, double raw) const {
  const double confidence = raw > 0 ? std::min(raw, 1.0) : 0;
  const double prior = std::max(confidence, (confidence + share_of_position(source, position)) / 2);
  const Cell& cell = cells_[cell_of(source, position, raw)];
  return std::clamp((cell.accepted + prior_weight * prior) / (cell.tried + prior_weight), least, 1.0);
}

// Of few trials little: as if prior_weight more had failed.
double AcceptanceStatistics::share_of_position(Source source, int32_t position) const {
  const size_t first = cell_of(source, position, 0);
  double tried = prior_weight, accepted = 0;
  for (size_t band = 0; band < size_t{bands}; ++band) {
    tried += cells_[first + band].tried;
    accepted += cells_[first + band].accepted;
  }
  return accepted / tried;
}

void AcceptanceStatistics::add(Source source, int32_t position, double raw, bool accepted) {
  Cell& cell = cells_[cell_of(source, position, raw)];
  cell.tried = cell.tried * decay + 1;
  cell.accepted = cell.accepted * decay + (accepted ? 1 : 0);
}

void AcceptanceStatistics::fade() {
  constexpr int64_t rounds = 32;  // between two fades: slow against the trials of a cell that is in use
  if (++rounds_ % rounds != 0) return;
  for (Cell& cell : cells_) cell.tried *= decay, cell.accepted *= decay;
}

void AcceptanceStatistics::add_round(const Proposal& proposal, const std::array<double, most_drafts>& raw,
                                     int32_t tried, int32_t accepted) {
  tried = std::clamp(tried, 0, proposal.count);
  accepted = std::clamp(accepted, 0, tried);
  if (proposal.source == Source::none || tried == 0) return;
  Total& total = totals_[static_cast<size_t>(proposal.source)];
  ++total.rounds;
  total.tried += tried;
  total.accepted += accepted;
  double reach = 1;
  for (int32_t i = 0; i < tried; ++i) {
    const auto draft = static_cast<size_t>(i);
    reach *= proposal.confidence[draft];
    total.expected += reach;
    if (i < accepted) ++total.accepted_at[draft];
    if (i <= accepted) add(proposal.source, i, raw[draft], i < accepted);  // what comes after a miss was not judged
  }
}

}  // namespace tandem::draft
