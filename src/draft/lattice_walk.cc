// The walk: one row's candidates are scored from the pick of the row before.
#include "draft/lattice_walk.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/keyed_noise.h"

namespace tandem::draft {
namespace {

constexpr double greedy_below = 1e-5;  // a temperature

// Candidates of one row. Those past 16 (a DraftDistribution's most) are left out: they are the least likely.
struct Row {
  int32_t size = 0;
  std::array<int32_t, DraftDistribution::most> ids{};
  std::array<double, DraftDistribution::most> scores{};
};

// False: an id or a score that cannot be.
bool read_row(const forward::DraftLattices& lattices, const Walk& walk, int64_t number, int64_t predecessor,
              const WalkOptions& options, int64_t vocab_size, Row& row) {
  const int64_t first = (walk.stream * lattices.rows + number) * lattices.top_k;
  const int64_t edges = (first + predecessor) * lattices.top_k;
  row.size = static_cast<int32_t>(std::min<int64_t>(lattices.top_k, DraftDistribution::most));
  for (int32_t i = 0; i < row.size; ++i) {
    const auto candidate = static_cast<size_t>(i);
    const int32_t id = lattices.ids[static_cast<size_t>(first + i)];
    const double score = double{lattices.unary[static_cast<size_t>(first + i)]} +
                         options.edge_weight * double{lattices.edges[static_cast<size_t>(edges + i)]};
    if (id < 0 || id >= vocab_size || !std::isfinite(score)) return false;
    row.ids[candidate] = id;
    row.scores[candidate] = score;
  }
  return row.size > 0;
}

// Shares of exp(value · scale).
template <typename Value>
std::array<double, DraftDistribution::most> softmax(int32_t size, const Value& value) {
  std::array<double, DraftDistribution::most> shares{};
  double largest = value(0);
  for (int32_t i = 1; i < size; ++i) largest = std::max(largest, value(i));
  double sum = 0;
  for (int32_t i = 0; i < size; ++i) sum += shares[static_cast<size_t>(i)] = std::exp(value(i) - largest);
  for (int32_t i = 0; i < size; ++i) shares[static_cast<size_t>(i)] /= sum;
  return shares;
}

template <typename Value>
int32_t largest_of(int32_t size, const Value& value) {
  int32_t best = 0;
  double largest = value(0);
  for (int32_t i = 1; i < size; ++i) {
    const double next = value(i);
    if (next > largest) best = i, largest = next;  // ties: the lower index
  }
  return best;
}

struct Pick {
  int32_t index = 0;
  double confidence = 1;
};

Pick pick_greedy(const Row& row) {
  const auto score = [&](int32_t i) { return row.scores[static_cast<size_t>(i)]; };
  const int32_t index = largest_of(row.size, score);
  return {index, softmax(row.size, score)[static_cast<size_t>(index)]};
}

// With the noise that the target's own token will be sampled with: both lean to the same candidates.
Pick pick_coupled(const Row& row, const Walk& walk, int64_t position, const WalkOptions& options) {
  std::array<double, DraftDistribution::most> noise{};
  for (int32_t i = 0; i < row.size; ++i)
    noise[static_cast<size_t>(i)] = keyed_gumbel(walk.seed, position, row.ids[static_cast<size_t>(i)]);
  const int32_t index = largest_of(row.size, [&](int32_t i) {
    return row.scores[static_cast<size_t>(i)] / walk.temperature + options.noise_weight * noise[static_cast<size_t>(i)];
  });
  const auto shares = softmax(row.size, [&](int32_t i) {
    return (row.scores[static_cast<size_t>(i)] + noise[static_cast<size_t>(i)]) / options.confidence_scale;
  });
  return {index, shares[static_cast<size_t>(index)]};
}

Pick draw(const Row& row, const Walk& walk, int64_t position, DraftDistribution& drawn_from) {
  const auto scaled = [&](int32_t i) { return row.scores[static_cast<size_t>(i)] / walk.temperature; };
  const auto shares = softmax(row.size, scaled);
  drawn_from.size = row.size;
  for (int32_t i = 0; i < row.size; ++i) {
    drawn_from.ids[static_cast<size_t>(i)] = row.ids[static_cast<size_t>(i)];
    drawn_from.probabilities[static_cast<size_t>(i)] = shares[static_cast<size_t>(i)];
  }
  const uint64_t seed = draft_seed(walk.seed);
  const int32_t index = largest_of(
      row.size, [&](int32_t i) { return scaled(i) + keyed_gumbel(seed, position, row.ids[static_cast<size_t>(i)]); });
  return {index, shares[static_cast<size_t>(index)]};
}

}  // namespace

uint64_t draft_seed(uint64_t seed) { return seed ^ 0x6472616674732121ULL; }  // "drafts!!"

bool walk_lattice(const forward::DraftLattices& lattices, const Walk& walk, const WalkOptions& options,
                  int64_t vocab_size, Proposal& proposal) {
  const auto rows = static_cast<int32_t>(std::min<int64_t>({lattices.rows, walk.most, most_drafts}));
  proposal.source = Source::dflash2;
  proposal.count = 0;
  Row row;
  int64_t predecessor = 0;
  for (int32_t i = 0; i < rows; ++i) {
    if (!read_row(lattices, walk, i, predecessor, options, vocab_size, row)) return false;
    const auto draft = static_cast<size_t>(i);
    const int64_t position = walk.position + i;
    proposal.drawn_from[draft].size = 0;
    const Pick pick = walk.temperature < greedy_below ? pick_greedy(row)
                      : walk.draws                    ? draw(row, walk, position, proposal.drawn_from[draft])
                                                      : pick_coupled(row, walk, position, options);
    proposal.tokens[draft] = row.ids[static_cast<size_t>(pick.index)];
    proposal.confidence[draft] = pick.confidence;
    proposal.count = i + 1;
    predecessor = pick.index;
  }
  return true;
}

}  // namespace tandem::draft
