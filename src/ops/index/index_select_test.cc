// Which tokens a row attends to, against spec/model.md 4.5: scores in double precision, the choice by sorting.
#include "ops/index/index_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "ops/test_random.h"

namespace tandem::ops::index_select_test {
namespace {

using test::Random;

struct Problem {
  int64_t heads, dim, kpool, budget, position, rows;
  std::vector<float> q, weights, keys;  // keys by pool number
  int64_t token_rows = page_rows;       // of a page
  CacheElement element = CacheElement::f32;

  int64_t pools() const { return (position + rows) / kpool; }
};

Problem make_problem(Random& random, int64_t heads, int64_t dim, int64_t kpool, int64_t budget, int64_t position,
                     int64_t rows) {
  Problem p{heads, dim, kpool, budget, position, rows, {}, {}, {}};
  p.q = random.normals(rows * heads * dim);
  p.weights = random.normals(rows * heads);  // both signs: scores may be negative
  p.keys = random.normals(std::max<int64_t>(1, p.pools()) * dim);
  return p;
}

struct Found {
  std::vector<std::vector<int32_t>> selected;
  std::vector<float> gaps;
};

// The problem in a paged pool: keys in pages in a scrambled order, NaN everywhere else. A rank of two has its own
// pages.
struct Call {
  std::vector<int32_t> page_table, order, selected, counts;
  std::vector<float> pool, scales, q, weights, scores, gaps;
  IndexSelect a;

  Call(const device::Threads& threads, const Problem& p, int32_t rank = 0, int32_t ranks = 1)
      : q(p.q), weights(p.weights) {
    const int64_t rows_of_page = p.token_rows / p.kpool, pages = p.pools() / rows_of_page + 1;
    for (int64_t i = 0; i < pages; ++i)
      page_table.push_back(i % ranks == rank ? static_cast<int32_t>(2 * (pages - i)) : 0);
    pool = test::unwritten((2 * pages + 1) * rows_of_page * p.dim);
    a.pooled = {reinterpret_cast<std::byte*>(pool.data()), page_table.data(), rows_of_page, p.dim, p.element};
    scales = test::unwritten((2 * pages + 1) * rows_of_page);
    a.pooled.scales = reinterpret_cast<std::byte*>(scales.data());
    a.pooled.rank = rank;
    a.pooled.ranks = ranks;
    for (int64_t i = 0; i < p.pools(); ++i) {
      if (a.pooled.holds(i)) a.pooled.store(i, p.keys.data() + i * p.dim);
    }
    a.heads = p.heads;
    a.dim = p.dim;
    a.kpool = p.kpool;
    a.budget = p.budget;
    a.position = p.position;
    a.rows = p.rows;
    a.q = q.data();
    a.head_weights = weights.data();
    a.max_pools = std::max(p.pools() + 1, 2 * (p.budget + 1));
    scores = test::unwritten(threads.count() * a.max_pools);
    order.assign(scores.size(), -7);
    a.scores = scores.data();
    a.order = order.data();
    a.max_selected = (p.budget + 1) * p.kpool - 1;
    selected.assign(static_cast<size_t>(p.rows * a.max_selected), -1);
    counts.assign(static_cast<size_t>(p.rows), -1);
    gaps = test::unwritten(p.rows);
    a.selected = selected.data();
    a.counts = counts.data();
    a.gaps = gaps.data();
  }

  Found found() const {
    Found f{{}, gaps};
    for (int64_t r = 0; r < a.rows; ++r) {
      const auto row = selected.begin() + r * a.max_selected;
      f.selected.emplace_back(row, row + counts[static_cast<size_t>(r)]);
    }
    return f;
  }
};

Found select(device::Threads& threads, const Problem& p) {
  Call call(threads, p);
  index_select(threads, call.a);
  return call.found();
}

// As two ranks do it.
Found select_by_ranks(device::Threads& threads, const Problem& p) {
  std::vector<float> candidates[2];
  for (int32_t rank = 0; rank < 2; ++rank) {
    Call call(threads, p, rank, 2);
    candidates[rank] = test::unwritten(p.rows * index_candidates_size(p.budget));
    index_candidates(threads, call.a, candidates[rank].data());
  }
  const float* all[2] = {candidates[0].data(), candidates[1].data()};
  Found found[2];
  for (int32_t rank = 0; rank < 2; ++rank) {
    Call call(threads, p, rank, 2);
    index_choose(threads, call.a, all);
    found[rank] = call.found();
  }
  EXPECT_EQ(found[0].selected, found[1].selected);
  EXPECT_TRUE(test::same_bits(found[0].gaps, found[1].gaps));
  return found[0];
}

std::vector<double> scores_double(const Problem& p, int64_t row, int64_t pools) {
  std::vector<double> out;
  for (int64_t pool = 0; pool < pools; ++pool) {
    double score = 0;
    for (int64_t h = 0; h < p.heads; ++h) {
      double dot = 0;
      for (int64_t d = 0; d < p.dim; ++d) {
        dot += static_cast<double>(p.q[static_cast<size_t>((row * p.heads + h) * p.dim + d)]) *
               p.keys[static_cast<size_t>(pool * p.dim + d)];
      }
      score += p.weights[static_cast<size_t>(row * p.heads + h)] / std::sqrt(test::real(p.heads)) *
               std::max(0.0, dot / std::sqrt(test::real(p.dim)));
    }
    out.push_back(score);
  }
  return out;
}

// Tokens of the best pools by (score descending, pool ascending) and the tail; sets *gap to the distance at the cut.
std::vector<int32_t> select_double(const Problem& p, int64_t row, double* gap) {
  const int64_t t = p.position + row, pools = (t + 1) / p.kpool, taken = std::min(pools, p.budget);
  const std::vector<double> scores = scores_double(p, row, pools);
  std::vector<int64_t> order(static_cast<size_t>(pools));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  *gap = std::numeric_limits<double>::infinity();
  if (taken < pools) {
    const auto cut = static_cast<size_t>(taken);
    *gap = scores[static_cast<size_t>(order[cut - 1])] - scores[static_cast<size_t>(order[cut])];
  }
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < taken; ++i) {
    for (int64_t j = 0; j < p.kpool; ++j)
      tokens.push_back(static_cast<int32_t>(order[static_cast<size_t>(i)] * p.kpool + j));
  }
  for (int64_t j = pools * p.kpool; j <= t; ++j) tokens.push_back(static_cast<int32_t>(j));
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

void expect_formula(device::Threads& threads, const Problem& p, const char* what) {
  const Found found = select(threads, p);
  for (int64_t r = 0; r < p.rows; ++r) {
    double gap = 0;
    const std::vector<int32_t> expected = select_double(p, r, &gap);
    const float found_gap = found.gaps[static_cast<size_t>(r)];
    if (std::isinf(gap)) {
      EXPECT_EQ(found_gap, std::numeric_limits<float>::infinity()) << what << " row " << r;
    } else {
      EXPECT_NEAR(found_gap, gap, 1e-5) << what << " row " << r;
    }
    if (gap < 1e-5) continue;  // another order of the sum may choose the other pool
    EXPECT_EQ(found.selected[static_cast<size_t>(r)], expected) << what << " row " << r;
  }
}

TEST(IndexSelect, AgainstDouble) {
  device::Threads threads(3);
  Random random(1);
  for (const int64_t kpool : {1, 2, 4, 16}) {
    for (const int64_t heads : {1, 5, 32, 64, 65, 130}) {
      expect_formula(threads, make_problem(random, heads, 20, kpool, 6, 0, 40 * kpool), "from the start");
      expect_formula(threads, make_problem(random, heads, 32, kpool, 9, 333, 7), "in the middle");
    }
  }
  expect_formula(threads, make_problem(random, 32, 128, 4, 512, 4095, 6), "512 of 1024 pools, 17 pages");
}

TEST(IndexSelect, EverythingUpToTheDenseLimit) {
  device::Threads threads(1);
  Random random(2);
  const int64_t kpool = 4, budget = 5, limit = budget * kpool + kpool - 1;  // tokens of context
  const Found found = select(threads, make_problem(random, 3, 16, kpool, budget, 0, limit + 1));
  for (int64_t t = 0; t <= limit; ++t) {
    const std::vector<int32_t>& tokens = found.selected[static_cast<size_t>(t)];
    std::vector<int32_t> all(static_cast<size_t>(t + 1));
    std::iota(all.begin(), all.end(), 0);
    if (t + 1 <= limit) {
      EXPECT_EQ(tokens, all) << t;
      EXPECT_EQ(found.gaps[static_cast<size_t>(t)], std::numeric_limits<float>::infinity());
    } else {
      EXPECT_EQ(tokens.size(), static_cast<size_t>(budget * kpool)) << "the first sparse context";
      EXPECT_TRUE(std::isfinite(found.gaps[static_cast<size_t>(t)]));
    }
  }
}

// Zero queries: all scores are exactly 0, so the lowest pools win. Equal keys tie at another score.
TEST(IndexSelect, TiesGoToTheLowerPool) {
  device::Threads threads(1);
  Random random(3);
  Problem p = make_problem(random, 2, 16, 4, 3, 39, 1);
  std::fill(p.q.begin(), p.q.end(), 0.0f);
  const std::vector<int32_t> lowest = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  Found found = select(threads, p);
  EXPECT_EQ(found.selected[0], lowest);
  EXPECT_EQ(found.gaps[0], 0.0f);
  p = make_problem(random, 2, 16, 4, 3, 39, 1);
  for (size_t i = 0; i < p.keys.size(); ++i) p.keys[i] = p.keys[i % 16];
  EXPECT_EQ(select(threads, p).selected[0], lowest);
}

// One head, keys on a line: scores can be set by hand. `values` is what every pool scores up to a positive factor.
Problem line(const std::vector<float>& values, int64_t budget, int64_t position) {
  Problem p{1, 1, 4, budget, position, 1, {1.0f}, {1.0f}, values};
  if (std::any_of(values.begin(), values.end(), [](float v) { return v < 0; })) {
    p.q[0] = -1.0f;  // ReLU keeps the negative ones, the weight makes them negative scores
    p.weights[0] = -1.0f;
  }
  return p;
}

TEST(IndexSelect, OwnPoolMustWinByScore) {
  device::Threads threads(1);
  // t = 15 completes pool 3, which scores least: the row does not attend to itself.
  EXPECT_EQ(select(threads, line({3, 4, 5, 1}, 2, 15)).selected[0], (std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(select(threads, line({3, 4, 5, 9}, 2, 15)).selected[0],
            (std::vector<int32_t>{8, 9, 10, 11, 12, 13, 14, 15}));
}

TEST(IndexSelect, TheTailIsAlwaysThere) {
  device::Threads threads(1);
  const std::vector<float> values = {3, 4, 5, 1};
  EXPECT_EQ(select(threads, line(values, 2, 16)).selected[0], (std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10, 11, 16}));
  EXPECT_EQ(select(threads, line(values, 2, 18)).selected[0],
            (std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18}));
}

TEST(IndexSelect, NegativeScoresAreOrderedToo) {
  device::Threads threads(1);
  EXPECT_EQ(select(threads, line({-3, -1, -2, -4}, 2, 15)).selected[0],
            (std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(select(threads, line({-3, 1, -2, -4}, 1, 15)).selected[0],  // 0 is more than every negative score
            (std::vector<int32_t>{4, 5, 6, 7}));
}

// A pool that a later row of the segment completes is no candidate for earlier rows.
TEST(IndexSelect, LaterPoolsAreNoCandidates) {
  device::Threads threads(1);
  Problem p = line({1, 2, 3, 100}, 2, 12);
  p.rows = 4;
  p.q.assign(4, 1.0f);
  p.weights.assign(4, 1.0f);
  const Found found = select(threads, p);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(found.selected[r].size(), 8 + r + 1);
    EXPECT_EQ(found.selected[r][7], 11);
  }
  EXPECT_EQ(found.selected[3], (std::vector<int32_t>{8, 9, 10, 11, 12, 13, 14, 15}));
}

TEST(IndexSelect, DoesNotDependOnRowsAndThreads) {
  device::Threads one(1), three(3);
  Random random(4);
  const Problem p = make_problem(random, 5, 24, 4, 8, 100, 70);
  const Found all = select(three, p);
  for (int64_t r = 0; r < p.rows; ++r) {
    Problem single = p;
    single.position += r;
    single.rows = 1;
    const auto width = p.heads * p.dim;
    single.q.assign(p.q.begin() + r * width, p.q.begin() + (r + 1) * width);
    single.weights.assign(p.weights.begin() + r * p.heads, p.weights.begin() + (r + 1) * p.heads);
    const Found found = select(one, single);
    EXPECT_EQ(found.selected[0], all.selected[static_cast<size_t>(r)]) << r;
    EXPECT_TRUE(test::same_bits(found.gaps[0], all.gaps[static_cast<size_t>(r)])) << r;
  }
}

TEST(IndexSelect, DoesNotDependOnThePageSize) {
  device::Threads threads(2);
  Random random(5);
  Problem p = make_problem(random, 5, 24, 4, 8, 300, 9);
  const Found large = select(threads, p);
  for (const int64_t token_rows : {4, 16, 64, 100}) {
    p.token_rows = token_rows;
    const Found small = select(threads, p);
    EXPECT_EQ(small.selected, large.selected) << token_rows;
    EXPECT_TRUE(test::same_bits(small.gaps, large.gaps)) << token_rows;
  }
}

// Keys stored as bf16 are scored as the rounded keys; only the order of the sum is another.
TEST(IndexSelect, Bf16KeysAreTheRoundedKeys) {
  device::Threads threads(1);
  Random random(6);
  for (int trial = 0; trial < 20; ++trial) {
    Problem p = make_problem(random, 4, 40, 4, 6, 200, 1);
    p.element = CacheElement::bf16;
    const Found stored = select(threads, p);
    std::vector<std::byte> bytes(80);
    const int32_t page = 0;
    const PagedPlane plane{bytes.data(), &page, 1, 40, CacheElement::bf16};
    for (int64_t pool = 0; pool < p.pools(); ++pool) {
      plane.store(0, p.keys.data() + pool * 40);
      plane.load(0, p.keys.data() + pool * 40);
    }
    double gap = 0;
    const std::vector<int32_t> expected = select_double(p, 0, &gap);
    EXPECT_NEAR(stored.gaps[0], gap, 1e-5);
    if (gap < 1e-5) continue;
    EXPECT_EQ(stored.selected[0], expected) << trial;
  }
}

// FP8 keys: queries are rotated and rounded as keys are, their scale goes into the head's weight (spec/model.md 4.6).
// Expected: the choice among the rounded keys by the rounded queries, in double.
Problem rounded_as_fp8(const Problem& p) {
  Problem r = p;
  const quant::CacheRecord record = quant::cache_record(quant::RecordKind::index_fp8, p.dim);
  std::vector<std::byte> codes(static_cast<size_t>(p.dim)), scale(4);
  for (std::vector<float>* all : {&r.keys, &r.q}) {
    for (size_t at = 0; at < all->size(); at += static_cast<size_t>(p.dim)) {
      quant::encode_record(record, all->data() + at, 0, codes.data(), scale.data());
      quant::decode_record(record, codes.data(), scale.data(), all->data() + at);
    }
  }
  return r;
}

TEST(IndexSelect, Fp8KeysAndQueriesAreRotatedAndRounded) {
  device::Threads threads(2);
  Random random(16);
  int cut = 0;
  for (const int64_t dim : {32, 128}) {
    for (int trial = 0; trial < 12; ++trial) {
      Problem p = make_problem(random, 4, dim, 4, 6, 200, 3);
      p.element = CacheElement::index_fp8;
      const Found stored = select(threads, p);
      const Problem rounded = rounded_as_fp8(p);
      for (int64_t row = 0; row < p.rows; ++row) {
        double gap = 0;
        const std::vector<int32_t> expected = select_double(rounded, row, &gap);
        EXPECT_NEAR(stored.gaps[static_cast<size_t>(row)], gap, 1e-5);
        if (gap < 1e-5) continue;
        ++cut;
        EXPECT_EQ(stored.selected[static_cast<size_t>(row)], expected) << trial;
      }
    }
  }
  EXPECT_GT(cut, 60) << "the comparison was empty";
}

// The rotation cancels: FP8 scores are those of the exact keys up to the rounding of e4m3.
TEST(IndexSelect, Fp8ScoresAreNearTheExactOnes) {
  device::Threads threads(1);
  Random random(17);
  double worst = 0, largest = 0;
  for (int trial = 0; trial < 20; ++trial) {
    Problem p = make_problem(random, 1, 128, 4, 1, 11, 1);  // two of three pools are left out
    std::fill(p.weights.begin(), p.weights.end(), 1.0f);
    const Found exact = select(threads, p);
    p.element = CacheElement::index_fp8;
    const Found stored = select(threads, p);
    worst = std::max(worst, static_cast<double>(std::abs(stored.gaps[0] - exact.gaps[0])));
    largest = std::max(largest, static_cast<double>(exact.gaps[0]));
  }
  EXPECT_LT(worst, 0.2) << "scores have a deviation of about 1";
  EXPECT_GT(worst, 1e-6);
  EXPECT_GT(largest, 0.5);
}

TEST(IndexSelect, Fp8DoesNotDependOnRowsThreadsAndPages) {
  Random random(18);
  Problem p = make_problem(random, 3, 64, 4, 5, 1500, 40);
  p.element = CacheElement::index_fp8;
  device::Threads one(1), three(3);
  const Found all = select(three, p);
  for (const int64_t token_rows : {4, 16, 64}) {
    Problem small = p;
    small.token_rows = token_rows;
    EXPECT_EQ(select(one, small).selected, all.selected) << token_rows;
    EXPECT_TRUE(test::same_bits(select(one, small).gaps, all.gaps)) << token_rows;
  }
  Problem last = p;
  last.position += p.rows - 1;
  last.rows = 1;
  last.q.assign(p.q.end() - 3 * 64, p.q.end());
  last.weights.assign(p.weights.end() - 3, p.weights.end());
  EXPECT_EQ(select(one, last).selected[0], all.selected.back());
}

TEST(IndexSelect, RanksChooseWhatOneRankChooses) {
  device::Threads threads(3);
  Random random(7);
  for (const int64_t token_rows : {4, 16, 48, 256}) {
    for (const CacheElement element : {CacheElement::f32, CacheElement::bf16, CacheElement::index_fp8}) {
      for (const int64_t budget : {1, 6, 40}) {
        for (const int64_t position : {0, 30, 161, 700}) {
          Problem p = make_problem(random, 3, 32, 4, budget, position, 9);
          p.token_rows = token_rows;
          p.element = element;
          const Found one = select(threads, p), two = select_by_ranks(threads, p);
          ASSERT_EQ(two.selected, one.selected) << token_rows << " " << budget << " " << position;
          ASSERT_TRUE(test::same_bits(two.gaps, one.gaps)) << token_rows << " " << budget << " " << position;
        }
      }
    }
  }
}

// Many equal scores on both ranks: the lower pools win wherever they lie.
TEST(IndexSelect, RanksBreakTiesByPool) {
  device::Threads threads(1);
  Random random(8);
  for (const int64_t token_rows : {4, 16, 256}) {
    Problem p = make_problem(random, 2, 16, 4, 7, 399, 1);
    p.token_rows = token_rows;
    for (size_t i = 0; i < p.keys.size(); ++i) p.keys[i] = p.keys[i % 16] * (i / 16 % 3 == 0 ? 1.0f : 0.0f);
    const Found one = select(threads, p), two = select_by_ranks(threads, p);
    EXPECT_EQ(two.selected, one.selected) << token_rows;
    EXPECT_EQ(two.gaps[0], 0.0f);
  }
}

TEST(IndexSelect, ScoresAreNeededBeyondTheBudget) {
  device::Threads threads(1);
  Random random(9);
  EXPECT_FALSE(index_needs_scores(Call(threads, make_problem(random, 1, 4, 4, 5, 0, 23)).a));
  EXPECT_TRUE(index_needs_scores(Call(threads, make_problem(random, 1, 4, 4, 5, 0, 24)).a));
  EXPECT_TRUE(index_needs_scores(Call(threads, make_problem(random, 1, 4, 4, 5, 23, 1)).a));
}

TEST(ExpandSelection, TokensOfPoolsThenTheTail) {
  const int32_t pools[] = {0, 2, 5};
  int32_t out[16];
  EXPECT_EQ(expand_selection(pools, 3, 25, 4, out), 14);
  EXPECT_EQ(std::vector<int32_t>(out, out + 14),
            (std::vector<int32_t>{0, 1, 2, 3, 8, 9, 10, 11, 20, 21, 22, 23, 24, 25}));
  EXPECT_EQ(expand_selection(pools, 3, 23, 4, out), 12);  // t completes its pool: no tail
  EXPECT_EQ(expand_selection(pools, 0, 2, 4, out), 3);
  EXPECT_EQ(std::vector<int32_t>(out, out + 3), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(expand_selection(pools, 2, 7, 1, out), 2);
  EXPECT_EQ(out[1], 2);
}

}  // namespace
}  // namespace tandem::ops::index_select_test
