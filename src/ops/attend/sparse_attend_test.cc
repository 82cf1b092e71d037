// Attention over selected latent rows against spec/model.md 4.2 and 4.3 in double precision.
#include "ops/attend/sparse_attend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "ops/test_random.h"

namespace tandem::ops::sparse_attend_test {
namespace {

using test::Random;

struct Problem {
  int64_t heads, rank, tokens;
  float scale;
  std::vector<float> latent;                   // [tokens, rank]
  std::vector<std::vector<int32_t>> selected;  // of each row
  std::vector<float> q;
  int64_t rows_of_page = page_rows;
  CacheElement element = CacheElement::f32;
};

Problem make_problem(Random& random, int64_t heads, int64_t rank, int64_t tokens,
                     std::vector<std::vector<int32_t>> selected, float size = 1.0f) {
  Problem p{heads, rank, tokens, 1.0f / std::sqrt(static_cast<float>(rank)), {}, std::move(selected), {}};
  p.latent = random.normals(tokens * rank);
  p.q = random.normals(static_cast<int64_t>(p.selected.size()) * heads * rank, size);
  return p;
}

std::vector<int32_t> some_tokens(Random& random, int64_t first, int64_t last, int64_t count) {
  std::set<int32_t> tokens;
  while (static_cast<int64_t>(tokens.size()) < count)
    tokens.insert(static_cast<int32_t>(first + random.below(last - first)));
  return {tokens.begin(), tokens.end()};
}

// The problem in a paged pool: pages in a scrambled order, NaN elsewhere; `spread` moves them about.
struct Call {
  std::vector<int32_t> page_table, selected, counts;
  std::vector<float> pool, scratch, out;
  std::vector<const float*> pointers;
  SparseAttend a;

  Call(const device::Threads& threads, const Problem& p, int64_t spread) {
    const int64_t pages = (p.tokens + p.rows_of_page - 1) / p.rows_of_page;
    for (int64_t i = 0; i < pages; ++i) page_table.push_back(static_cast<int32_t>((pages - 1 - i) * spread + 1));
    pool = test::unwritten((pages * spread + 1) * p.rows_of_page * p.rank);
    a.latent = {reinterpret_cast<std::byte*>(pool.data()), page_table.data(), p.rows_of_page, p.rank, p.element};
    for (int64_t t = 0; t < p.tokens; ++t) a.latent.store(t, p.latent.data() + t * p.rank);
    a.heads = p.heads;
    a.kv_lora_rank = p.rank;
    a.rows = static_cast<int64_t>(p.selected.size());
    a.scale = p.scale;
    a.q = p.q.data();
    for (const auto& row : p.selected) a.max_selected = std::max(a.max_selected, static_cast<int64_t>(row.size()));
    selected.assign(static_cast<size_t>(a.rows * a.max_selected), -1);
    for (int64_t r = 0; r < a.rows; ++r) {
      const auto& row = p.selected[static_cast<size_t>(r)];
      std::copy(row.begin(), row.end(), selected.begin() + r * a.max_selected);
      counts.push_back(static_cast<int32_t>(row.size()));
    }
    a.selected = selected.data();
    a.counts = counts.data();
    scratch = test::unwritten(threads.count() * sparse_attend_scratch(a.max_selected, p.rank, p.element));
    pointers.resize(static_cast<size_t>(threads.count() * a.max_selected), nullptr);
    a.scratch = scratch.data();
    a.pointers = pointers.data();
    out = test::unwritten(a.rows * p.heads * p.rank);
    a.out = out.data();
  }
};

std::vector<float> attend(device::Threads& threads, const Problem& p, int64_t spread = 3) {
  Call call(threads, p, spread);
  sparse_attend(threads, call.a);
  return call.out;
}

// As two ranks do it: each holds the pages of one leaf, the other's are out of reach.
std::vector<float> attend_by_leaves(device::Threads& threads, const Problem& p) {
  Call call(threads, p, 3);
  std::vector<float> leaves[2];
  for (int64_t leaf = 0; leaf < 2; ++leaf) {
    Call own(threads, p, 3);
    for (size_t entry = 0; entry < own.page_table.size(); ++entry) {
      if (static_cast<int64_t>(entry) % 2 != leaf) own.page_table[entry] = 0;  // NaN
    }
    leaves[leaf] = test::unwritten(own.a.rows * attend_leaf_size(p.heads, p.rank));
    attend_leaf(threads, own.a, leaf, leaves[leaf].data());
  }
  merge_attend_leaves(threads, call.a, leaves[0].data(), leaves[1].data());
  return call.out;
}

std::vector<double> attend_double(const Problem& p) {
  std::vector<double> out;
  for (size_t r = 0; r < p.selected.size(); ++r) {
    for (int64_t h = 0; h < p.heads; ++h) {
      const float* q = p.q.data() + (static_cast<int64_t>(r) * p.heads + h) * p.rank;
      std::vector<double> scores;
      for (const int32_t token : p.selected[r]) {
        double dot = 0;
        for (int64_t d = 0; d < p.rank; ++d)
          dot += static_cast<double>(q[d]) * p.latent[static_cast<size_t>(token * p.rank + d)];
        scores.push_back(dot * p.scale);
      }
      const double largest = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& s : scores) sum += s = std::exp(s - largest);
      for (int64_t d = 0; d < p.rank; ++d) {
        double value = 0;
        for (size_t i = 0; i < scores.size(); ++i)
          value += scores[i] / sum * p.latent[static_cast<size_t>(p.selected[r][i] * p.rank + d)];
        out.push_back(value);
      }
    }
  }
  return out;
}

TEST(SparseAttend, AgainstDouble) {
  device::Threads threads(3);
  Random random(1);
  for (const int64_t heads : {1, 3, 8, 13, 64}) {
    for (const int64_t rank : {20, 72, 512}) {
      for (const float size : {1.0f, 12.0f}) {  // 12: a few keys take everything
        const Problem p = make_problem(random, heads, rank, 1100,
                                       {some_tokens(random, 0, 1100, 150),  // both leaves, pages 0 to 4
                                        some_tokens(random, 0, 256, 7),     // leaf 0 only
                                        some_tokens(random, 256, 512, 33),  // leaf 1 only
                                        some_tokens(random, 512, 768, 17),  // leaf 0, beyond the first pages
                                        {1099},                             // one key
                                        {255, 256},                         // one key a leaf
                                        some_tokens(random, 200, 520, 64)},
                                       size);
        EXPECT_TRUE(test::close(attend(threads, p), attend_double(p), size > 1 ? 2e-5 : 3e-6)) << heads << " " << rank;
      }
    }
  }
}

// One leaf far above the other: the merge must not overflow, and the lower leaf's share vanishes.
TEST(SparseAttend, LeavesOfVeryDifferentScores) {
  device::Threads threads(1);
  Random random(2);
  for (const bool even_wins : {false, true}) {
    Problem p = make_problem(random, 2, 16, 512, {some_tokens(random, 0, 512, 40)});
    for (int64_t t = 0; t < 512; ++t) {
      for (int64_t d = 0; d < 16; ++d) {
        p.latent[static_cast<size_t>(t * 16 + d)] += ((t < 256) == even_wins ? 40.0f : -40.0f);
      }
    }
    for (float& q : p.q) q = std::abs(q) + 1.0f;
    EXPECT_TRUE(test::close(attend(threads, p), attend_double(p), 2e-5)) << even_wins;
  }
}

// Equal keys in both leaves: every key weighs the same, so the leaves weigh as their numbers of keys.
TEST(SparseAttend, LeavesWeighAsTheirSums) {
  device::Threads threads(1);
  Random random(3);
  Problem p = make_problem(random, 1, 4, 512, {{0, 300, 301, 302}});
  std::fill(p.q.begin(), p.q.end(), 0.0f);
  for (size_t d = 0; d < 4; ++d) {
    p.latent[d] = 8.0f;
    for (size_t t = 300; t < 303; ++t) p.latent[t * 4 + d] = static_cast<float>(t) - 300.0f;
  }
  for (const float value : attend(threads, p)) EXPECT_FLOAT_EQ(value, (8.0f + 0 + 1 + 2) / 4);
}

// Which page is in which leaf, shown by rounding: all keys weigh the same, and 1e8 + 1 = 1e8. Even pages cancel exactly
// in leaf 0 and leaf 1 keeps its two ones; any other split, or one sum over all keys, loses at least one of them.
TEST(SparseAttend, LeavesArePagesByParity) {
  device::Threads threads(1);
  Random random(5);
  Problem p = make_problem(random, 1, 4, 1024, {{10, 300, 700, 1000}});  // pages 0, 1, 2, 3
  std::fill(p.q.begin(), p.q.end(), 0.0f);
  const float values[4] = {1e8f, 1.0f, -1e8f, 1.0f};
  for (size_t key = 0; key < 4; ++key) {
    for (size_t d = 0; d < 4; ++d) p.latent[static_cast<size_t>(p.selected[0][key]) * 4 + d] = values[key];
  }
  for (const float value : attend(threads, p)) EXPECT_EQ(value, 0.5f);
}

TEST(SparseAttend, BitsDoNotDependOnThreadsRowsAndPages) {
  device::Threads one(1), three(3);
  Random random(4);
  for (const int64_t heads : {1, 3, 10, 64}) {
    const int64_t rank = 36;
    const Problem p = make_problem(random, heads, rank, 700,
                                   {some_tokens(random, 0, 700, 90), some_tokens(random, 0, 700, 3),
                                    some_tokens(random, 0, 200, 5), some_tokens(random, 0, 700, 41)});
    const std::vector<float> all = attend(one, p);
    EXPECT_TRUE(test::same_bits(attend(three, p), all)) << heads;
    EXPECT_TRUE(test::same_bits(attend(three, p, 1), all)) << heads;
    for (size_t r = 0; r < p.selected.size(); ++r) {
      Problem single = p;
      const int64_t width = heads * rank, at = static_cast<int64_t>(r) * width;
      single.selected = {p.selected[r]};
      single.q.assign(p.q.begin() + at, p.q.begin() + at + width);
      EXPECT_TRUE(test::same_bits(attend(three, single).data(), all.data() + at, width)) << heads << " row " << r;
    }
    for (int64_t h = 0; h < heads; ++h) {  // nor on the heads beside it
      Problem head = p;
      head.heads = 1;
      head.selected = {p.selected[0]};
      head.q.assign(p.q.begin() + h * rank, p.q.begin() + (h + 1) * rank);
      EXPECT_TRUE(test::same_bits(attend(one, head).data(), all.data() + h * rank, rank)) << heads << " head " << h;
    }
  }
}

TEST(SparseAttend, LeavesApartGiveTheSameBits) {
  device::Threads threads(3);
  Random random(6);
  for (const int64_t rows_of_page : {16, 100, 256}) {
    for (const CacheElement element : {CacheElement::f32, CacheElement::bf16, CacheElement::latent_fp8,
                                       CacheElement::latent_fp8_row, CacheElement::latent_nvfp4}) {
      for (const int64_t heads : {0, 1, 2, 13}) {
        Problem p = make_problem(random, heads, 40, 700,
                                 {some_tokens(random, 0, 700, 90),
                                  some_tokens(random, 0, 16, 3),
                                  some_tokens(random, rows_of_page, rows_of_page + 16, 5),
                                  {699}});
        p.rows_of_page = rows_of_page;
        p.element = element;
        EXPECT_TRUE(test::same_bits(attend_by_leaves(threads, p), attend(threads, p))) << rows_of_page << " " << heads;
      }
    }
  }
}

// The parity is that of the plane's own pages.
TEST(SparseAttend, SmallPagesAreOtherLeaves) {
  device::Threads threads(1);
  Random random(7);
  Problem p = make_problem(random, 1, 4, 64, {{1, 17, 33, 49}});  // entries 0 to 3 of 16 rows
  p.rows_of_page = 16;
  std::fill(p.q.begin(), p.q.end(), 0.0f);
  const float values[4] = {1e8f, 1.0f, -1e8f, 1.0f};
  for (size_t key = 0; key < 4; ++key) {
    for (size_t d = 0; d < 4; ++d) p.latent[static_cast<size_t>(p.selected[0][key]) * 4 + d] = values[key];
  }
  for (const float value : attend(threads, p)) EXPECT_EQ(value, 0.5f);
}

// ‖x − y‖ / ‖y‖
double relative_error(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - y[i], 2);
    size += std::pow(static_cast<double>(y[i]), 2);
  }
  return std::sqrt(error / size);
}

// Stored rows: the attention of rows that have been rounded, bit for bit, and near that of the exact rows. The limits
// are the formats' own errors on normal values (spec/quantization.md 5.3, 5.4: 0.026 and 0.095; one power of two a row
// costs a little more), which the scores' errors add to.
TEST(SparseAttend, StoredRowsAreTheRoundedRows) {
  device::Threads threads(2);
  Random random(8);
  struct Format {
    CacheElement element;
    double least, most;
  };
  for (const Format& format :
       {Format{CacheElement::bf16, 1e-4, 0.005}, Format{CacheElement::latent_fp8, 0.01, 0.06},
        Format{CacheElement::latent_fp8_row, 0.01, 0.06}, Format{CacheElement::latent_nvfp4, 0.04, 0.2}}) {
    for (const int64_t rank : {20, 72, 512}) {
      Problem p = make_problem(random, 3, rank, 600, {some_tokens(random, 0, 600, 80), {599}});
      Problem stored = p;
      stored.element = format.element;
      const std::vector<float> exact = attend(threads, p);
      Call call(threads, stored, 3);
      for (int64_t t = 0; t < p.tokens; ++t) call.a.latent.load(t, p.latent.data() + t * rank);
      const std::vector<float> rounded = attend(threads, p);
      EXPECT_TRUE(test::same_bits(attend(threads, stored), rounded)) << name_of(format.element) << rank;
      const double error = relative_error(rounded, exact);
      EXPECT_GT(error, format.least) << name_of(format.element) << rank;
      EXPECT_LT(error, format.most) << name_of(format.element) << rank;
    }
  }
}

}  // namespace
}  // namespace tandem::ops::sparse_attend_test
