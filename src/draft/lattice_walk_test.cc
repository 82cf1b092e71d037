// The walk against a direct transcription of spec/speculation.md 1.6, 3.5 and 5.2 (fnc).
#include "draft/lattice_walk.h"

#include <cmath>
#include <limits>
#include <random>

#include "base/keyed_noise.h"

namespace tandem::draft::lattice_walk_test {
namespace {

constexpr int64_t vocabulary = 1000;

struct Lattice {
  Lattice(uint32_t seed, int64_t streams_, int64_t rows_, int64_t top_k_)
      : streams(streams_), rows(rows_), top_k(top_k_) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 2);
    for (int64_t i = 0; i < streams * rows * top_k; ++i) {
      ids.push_back(static_cast<int32_t>(random() % vocabulary));
      unary.push_back(normal(random));
      for (int64_t j = 0; j < top_k; ++j) edges.push_back(normal(random));
    }
  }
  forward::DraftLattices view() const {
    return {.streams = streams, .rows = rows, .top_k = top_k, .ids = ids, .unary = unary, .edges = edges};
  }
  double score(int64_t stream, int64_t row, int64_t predecessor, int64_t candidate, double edge_weight = 1) const {
    const int64_t node = (stream * rows + row) * top_k;
    return double{unary[static_cast<size_t>(node + candidate)]} +
           edge_weight * double{edges[static_cast<size_t>((node + predecessor) * top_k + candidate)]};
  }
  int32_t id(int64_t stream, int64_t row, int64_t candidate) const {
    return ids[static_cast<size_t>((stream * rows + row) * top_k + candidate)];
  }

  int64_t streams, rows, top_k;
  std::vector<int32_t> ids;
  std::vector<float> unary, edges;
};

TEST(LatticeWalk, GreedyTakesTheBestScoreFromThePickBefore) {
  for (uint32_t seed = 1; seed < 50; ++seed) {
    const Lattice lattice(seed, 3, 7, 16);
    const int64_t stream = seed % 3;
    const double edge_weight = seed % 2 == 0 ? 1.0 : 0.6;
    Proposal proposal;
    ASSERT_TRUE(walk_lattice(lattice.view(), {.stream = stream, .position = 50, .most = 7},
                             {.edge_weight = edge_weight}, vocabulary, proposal));
    ASSERT_EQ(proposal.count, 7);
    EXPECT_EQ(proposal.source, Source::dflash2);
    int64_t predecessor = 0;
    for (int64_t row = 0; row < 7; ++row) {
      int64_t best = 0;
      double sum = 0;
      for (int64_t c = 0; c < 16; ++c) {
        if (lattice.score(stream, row, predecessor, c, edge_weight) >
            lattice.score(stream, row, predecessor, best, edge_weight))
          best = c;
      }
      for (int64_t c = 0; c < 16; ++c)
        sum += std::exp(lattice.score(stream, row, predecessor, c, edge_weight) -
                        lattice.score(stream, row, predecessor, best, edge_weight));
      const auto draft = static_cast<size_t>(row);
      EXPECT_EQ(proposal.tokens[draft], lattice.id(stream, row, best));
      EXPECT_NEAR(proposal.confidence[draft], 1 / sum, 1e-12);
      EXPECT_EQ(proposal.drawn_from[draft].size, 0);
      predecessor = best;
    }
  }
}

TEST(LatticeWalk, SampledPicksLeanOnTheRequestsOwnNoise) {
  for (uint32_t seed = 1; seed < 50; ++seed) {
    const Lattice lattice(seed, 1, 5, 8);
    const double temperature = 0.2 + 0.1 * (seed % 9);
    const Walk walk = {.position = 1000, .most = 5, .temperature = temperature, .seed = seed};
    Proposal proposal;
    ASSERT_TRUE(walk_lattice(lattice.view(), walk, {}, vocabulary, proposal));
    int64_t predecessor = 0;
    for (int64_t row = 0; row < 5; ++row) {
      int64_t best = 0;
      double best_value = -1e300, sum = 0;
      const auto noise = [&](int64_t c) { return keyed_gumbel(seed, 1000 + row, lattice.id(0, row, c)); };
      for (int64_t c = 0; c < 8; ++c) {
        const double value = lattice.score(0, row, predecessor, c) / temperature + 0.7 * noise(c);
        if (value > best_value) best = c, best_value = value;
        sum += std::exp((lattice.score(0, row, predecessor, c) + noise(c)) / 2.0);
      }
      const auto draft = static_cast<size_t>(row);
      ASSERT_EQ(proposal.tokens[draft], lattice.id(0, row, best));
      EXPECT_NEAR(proposal.confidence[draft],
                  std::exp((lattice.score(0, row, predecessor, best) + noise(best)) / 2.0) / sum, 1e-12);
      EXPECT_EQ(proposal.drawn_from[draft].size, 0);
      predecessor = best;
    }
  }
}

TEST(LatticeWalk, NoNoiseWeightIsGreedy) {
  const Lattice lattice(5, 1, 7, 16);
  Proposal greedy, sampled;
  walk_lattice(lattice.view(), {.most = 7}, {}, vocabulary, greedy);
  walk_lattice(lattice.view(), {.most = 7, .temperature = 1, .seed = 9}, {.noise_weight = 0}, vocabulary, sampled);
  EXPECT_EQ(greedy.tokens, sampled.tokens);
  walk_lattice(lattice.view(), {.most = 7, .temperature = 1e-6, .seed = 9, .draws = true}, {}, vocabulary, sampled);
  EXPECT_EQ(greedy.tokens, sampled.tokens);  // greedy requests draw nothing
  EXPECT_EQ(sampled.drawn_from[0].size, 0);
}

TEST(LatticeWalk, DrawsAreOfTheDistributionThatTheyTell) {
  Lattice lattice(3, 1, 2, 6);
  for (size_t i = 0; i < lattice.ids.size(); ++i) lattice.ids[i] = static_cast<int32_t>(10 * i);
  constexpr int trials = 40000;
  std::vector<int> counts(6);
  Proposal proposal;
  for (int i = 0; i < trials; ++i) {
    const Walk walk = {.position = i, .most = 2, .temperature = 1.5, .seed = 77, .draws = true};
    ASSERT_TRUE(walk_lattice(lattice.view(), walk, {}, vocabulary, proposal));
    ++counts[static_cast<size_t>(proposal.tokens[0] / 10)];
  }
  const DraftDistribution& drawn_from = proposal.drawn_from[0];
  ASSERT_EQ(drawn_from.size, 6);
  double sum = 0, chi = 0, all = 0;
  for (int64_t c = 0; c < 6; ++c) all += std::exp(lattice.score(0, 0, 0, c) / 1.5);
  for (size_t c = 0; c < 6; ++c) {
    const double p = drawn_from.probabilities[c];
    EXPECT_EQ(drawn_from.ids[c], static_cast<int32_t>(10 * c));
    EXPECT_NEAR(p, std::exp(lattice.score(0, 0, 0, static_cast<int64_t>(c)) / 1.5) / all, 1e-12);
    chi += (counts[c] - trials * p) * (counts[c] - trials * p) / (trials * p);
    sum += p;
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_LT(chi, 20.5);  // 5 degrees of freedom: 0.1 %
  for (int32_t draft = 0; draft < 2; ++draft) {
    const DraftDistribution& of = proposal.drawn_from[static_cast<size_t>(draft)];
    const auto at = std::find(of.ids.begin(), of.ids.begin() + of.size, proposal.tokens[static_cast<size_t>(draft)]);
    ASSERT_NE(at, of.ids.begin() + of.size);
    EXPECT_EQ(of.probabilities[static_cast<size_t>(at - of.ids.begin())],
              proposal.confidence[static_cast<size_t>(draft)]);
  }
}

TEST(LatticeWalk, DrawsDoNotFollowTheRequestsNoise) {
  // With equal scores a coupled pick is the candidate of the largest noise, always; a draw is so by chance.
  Lattice lattice(3, 1, 1, 8);
  for (size_t i = 0; i < 8; ++i) lattice.ids[i] = static_cast<int32_t>(i), lattice.unary[i] = 0;
  std::fill(lattice.edges.begin(), lattice.edges.end(), 0.0f);
  int coupled = 0, drawn = 0;
  for (int64_t position = 0; position < 4000; ++position) {
    int32_t loudest = 0;
    for (int32_t id = 1; id < 8; ++id) {
      if (keyed_gumbel(5, position, id) > keyed_gumbel(5, position, loudest)) loudest = id;
    }
    Proposal proposal;
    walk_lattice(lattice.view(), {.position = position, .most = 1, .temperature = 1, .seed = 5}, {}, 8, proposal);
    coupled += proposal.tokens[0] == loudest;
    walk_lattice(lattice.view(), {.position = position, .most = 1, .temperature = 1, .seed = 5, .draws = true}, {}, 8,
                 proposal);
    drawn += proposal.tokens[0] == loudest;
  }
  EXPECT_EQ(coupled, 4000);
  EXPECT_NEAR(drawn, 500, 100);
  EXPECT_NE(draft_seed(5), 5u);
}

TEST(LatticeWalk, TiesGoToTheLowerIndex) {
  Lattice lattice(1, 1, 1, 4);
  lattice.unary = {1, 2, 2, 2};
  std::fill(lattice.edges.begin(), lattice.edges.end(), 0.0f);
  Proposal proposal;
  walk_lattice(lattice.view(), {.most = 1}, {}, vocabulary, proposal);
  EXPECT_EQ(proposal.tokens[0], lattice.ids[1]);
}

TEST(LatticeWalk, EndsBeforeWhatCannotBe) {
  const Lattice good(4, 1, 7, 16);
  for (const bool sampled : {false, true}) {
    const Walk walk = {.most = 7, .temperature = sampled ? 1.0 : 0.0, .seed = 1};
    Proposal proposal;
    Lattice bad = good;
    bad.ids[4 * 16 + 15] = vocabulary;
    EXPECT_FALSE(walk_lattice(bad.view(), walk, {}, vocabulary, proposal));
    EXPECT_EQ(proposal.count, 4);
    bad.ids[0] = -1;
    EXPECT_FALSE(walk_lattice(bad.view(), walk, {}, vocabulary, proposal));
    EXPECT_EQ(proposal.count, 0);
    bad = good;
    bad.unary[2 * 16] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(walk_lattice(bad.view(), walk, {}, vocabulary, proposal));
    EXPECT_EQ(proposal.count, 2);
    bad = good;
    std::fill(bad.edges.begin() + 16 * 16, bad.edges.end(), std::numeric_limits<float>::infinity());
    EXPECT_FALSE(walk_lattice(bad.view(), walk, {}, vocabulary, proposal));
    EXPECT_EQ(proposal.count, 1);
  }
}

TEST(LatticeWalk, TakesWhatIsThereAndWanted) {
  const Lattice lattice(4, 1, 3, 20);  // more candidates than a distribution tells: the last are left out
  Proposal proposal;
  EXPECT_TRUE(walk_lattice(lattice.view(), {.most = 9, .temperature = 1, .draws = true}, {}, vocabulary, proposal));
  EXPECT_EQ(proposal.count, 3);
  EXPECT_EQ(proposal.drawn_from[2].size, 16);
  EXPECT_TRUE(walk_lattice(lattice.view(), {.most = 0}, {}, vocabulary, proposal));
  EXPECT_EQ(proposal.count, 0);
  const Lattice none(4, 1, 3, 0);
  EXPECT_FALSE(walk_lattice(none.view(), {.most = 2}, {}, vocabulary, proposal));
}

}  // namespace
}  // namespace tandem::draft::lattice_walk_test
