// Candidates against a sort, edges against the sum.
#include "ops/draft_select/draft_select.h"

#include <limits>
#include <numeric>

#include "ops/test_random.h"

namespace tandem::ops::draft_select_test {
namespace {

TEST(DraftSelect, CandidatesAreThoseOfASort) {
  test::Random random(7);
  device::Threads threads(2);
  for (const int64_t vocab : {4, 5, 16, 1000}) {
    const int64_t rows = 3, count = std::min<int64_t>(vocab, 16);
    std::vector<float> logits(static_cast<size_t>(rows * vocab));
    for (float& x : logits) x = static_cast<float>(random.below(20));  // many ties
    std::vector<int32_t> ids(static_cast<size_t>(rows * count), -1);
    std::vector<float> found = test::unwritten(rows * count);
    top_candidates(threads, logits.data(), rows, vocab, count, ids.data(), found.data());
    for (int64_t row = 0; row < rows; ++row) {
      const float* of_row = logits.data() + row * vocab;
      std::vector<int32_t> order(static_cast<size_t>(vocab));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return of_row[a] > of_row[b]; });
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_EQ(ids[static_cast<size_t>(row * count + i)], order[static_cast<size_t>(i)]) << vocab << ", " << i;
        EXPECT_EQ(found[static_cast<size_t>(row * count + i)], of_row[order[static_cast<size_t>(i)]]);
      }
    }
  }
}

TEST(DraftSelect, ValuesThatAreNoNumbersComeLastAndIdsStayInTheVocabulary) {
  device::Threads threads(1);
  const float nan = test::not_a_number, minus = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {nan, 1.0f, nan, minus, 2.0f, nan};
  std::vector<int32_t> ids(5);
  std::vector<float> found(5);
  top_candidates(threads, logits.data(), 1, 6, 5, ids.data(), found.data());
  EXPECT_EQ(ids, (std::vector<int32_t>{4, 1, 0, 2, 3}));
  EXPECT_EQ(found, (std::vector<float>{2.0f, 1.0f, minus, minus, minus}));
}

TEST(DraftSelect, EdgesOfTheWholeLattice) {
  test::Random random(8);
  const int64_t vocab = 40, rank = 37, streams = 2, rows = 3, k = 5;
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f32}) {
    const test::StoredMatrix a = test::random_matrix(random, format, vocab, rank);
    const test::StoredMatrix b = test::random_matrix(random, format, vocab, rank);
    const std::vector<float> g = random.normals(streams * rows * rank);
    const std::vector<int32_t> pending = {39, 0};
    std::vector<int32_t> ids(static_cast<size_t>(streams * rows * k));
    for (int32_t& id : ids) id = static_cast<int32_t>(random.below(vocab));
    std::vector<double> expected;
    for (int64_t row = 0; row < streams * rows; ++row) {
      for (int64_t p = 0; p < k; ++p) {
        const int64_t previous =
            row % rows == 0 ? pending[static_cast<size_t>(row / rows)] : ids[static_cast<size_t>((row - 1) * k + p)];
        for (int64_t c = 0; c < k; ++c) {
          double sum = 0;
          for (int64_t j = 0; j < rank; ++j)
            sum += a.at(previous, j) * g[static_cast<size_t>(row * rank + j)] *
                   b.at(ids[static_cast<size_t>(row * k + c)], j);
          expected.push_back(sum);
        }
      }
    }
    for (const int count : {1, 3}) {
      device::Threads threads(count);
      std::vector<float> scratch = test::unwritten(count * selector_scratch(k, rank)),
                         edges = test::unwritten(streams * rows * k * k);
      SelectorEdges args;
      args.predecessor = &a.view;
      args.successor = &b.view;
      args.streams = streams;
      args.rows = rows;
      args.top_k = k;
      args.pending = pending.data();
      args.ids = ids.data();
      args.g = g.data();
      args.scratch = scratch.data();
      args.edges = edges.data();
      selector_edges(threads, args);
      EXPECT_TRUE(test::close(edges, expected, 1e-5));
    }
  }
}

}  // namespace
}  // namespace tandem::ops::draft_select_test
