// Scoring and selection on the GPU against index_select() on the same rounded inputs, rows of several streams together.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "device/kernel_dimensions.h"
#include "ops/index/index_select.h"
#include "ops/index/index_select_cuda.h"
#include "ops/latent/test_gpu_pages.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::index_select_gpu_test {
namespace {

using device::from_gpu;
using device::on_gpu;
using quant::RecordKind;

constexpr int32_t kpool = 4;
constexpr int32_t untouched = -7;

struct Problem {
  RecordKind kind = RecordKind::bf16;
  int64_t dim = 128, heads = 4, budget = 6, rows_of_page = 16;
  std::vector<test::PagedTestSegment> segments;  // without pages
  std::vector<float> q, weights;                 // bf16 values; fp32
  std::vector<std::vector<float>> keys;          // of each segment, [pools, dim]

  int64_t pools_of(const test::PagedTestSegment& s) const { return (s.position + s.rows) / kpool; }
};

Problem make_problem(RecordKind kind, int64_t dim, int64_t heads, int64_t budget,
                     std::vector<test::PagedTestSegment> segments, uint64_t seed = 1) {
  Problem p{kind, dim, heads, budget, 16, std::move(segments), {}, {}, {}};
  for (size_t i = 0; i < p.segments.size(); ++i) {
    auto& s = p.segments[i];
    const auto entries = static_cast<int32_t>(p.pools_of(s) / p.rows_of_page + 1);
    s.pages = test::scattered_pages(entries, static_cast<int32_t>(i), static_cast<int32_t>(p.segments.size()));
    // Of each stream the same numbers whatever else is there.
    p.keys.push_back(as_bf16_values(
        test::Random(seed + static_cast<uint64_t>(s.slot)).normals(std::max<int64_t>(1, p.pools_of(s)) * dim)));
    const auto offset = static_cast<uint64_t>(s.slot) * 1000;
    for (int64_t row = 0; row < s.rows; ++row) {
      test::Random of_row(seed + 77 + offset + static_cast<uint64_t>(s.position + row) * 7919);
      const std::vector<float> q = as_bf16_values(of_row.normals(heads * dim)), w = of_row.normals(heads);
      p.q.insert(p.q.end(), q.begin(), q.end());
      p.weights.insert(p.weights.end(), w.begin(), w.end());
    }
  }
  return p;
}

struct Found {
  std::vector<std::vector<int32_t>> selected;
  std::vector<float> gaps;
};

test::TestPlane plane_of(const Problem& p) {
  int32_t pages = 1;
  for (const auto& s : p.segments)
    for (const int32_t page : s.pages) pages = std::max(pages, page + 1);
  test::TestPlane plane(p.kind, p.dim, p.rows_of_page, pages);
  for (size_t i = 0; i < p.segments.size(); ++i) {
    const PagedPlane host = plane.host(p.segments[i].pages);
    for (int64_t pool = 0; pool < p.pools_of(p.segments[i]); ++pool) host.store(pool, p.keys[i].data() + pool * p.dim);
  }
  plane.upload();
  return plane;
}

int32_t max_pools_of(const Problem& p) {
  int64_t most = 1;
  for (const auto& s : p.segments) most = std::max(most, p.pools_of(s));
  return static_cast<int32_t>(most + 3);
}

Found on_the_gpu(const Problem& p, int64_t spare_rows = 2, int64_t score_bytes = index_score_bytes) {
  device::KernelDimensions dimensions;
  if (p.dim != 128) dimensions = {32, 72, 32, 4, 128};
  device::Gpu& gpu = device::gpu_under_test();
  const CudaIndexSelect select(gpu, device::model_defines(dimensions), score_bytes);
  test::TestPlane plane = plane_of(p);
  const test::GpuStep step(p.segments);
  const int64_t rows = step.rows, max_rows = rows + spare_rows, width = (p.budget + 1) * kpool - 1;
  const auto q = on_gpu(to_bf16(p.q)), weights = on_gpu(p.weights);
  const auto selected = on_gpu(std::vector<int32_t>(static_cast<size_t>(max_rows * width), untouched)),
             counts = on_gpu(std::vector<int32_t>(static_cast<size_t>(max_rows), untouched));
  const auto gaps = on_gpu(std::vector<float>(static_cast<size_t>(max_rows), -1.0f));
  IndexSelectArgs a{};
  a.step = step.view;
  a.q = q.as<device::bf16>();
  a.head_weights = weights.as<float>();
  a.q_stride = p.heads * p.dim;
  a.weights_stride = p.heads;
  a.pooled = plane.view;
  a.heads = static_cast<int32_t>(p.heads);
  a.budget = static_cast<int32_t>(p.budget);
  a.selected = selected.as<int32_t>();
  a.counts = counts.as<int32_t>();
  a.gaps = gaps.as<float>();
  a.max_selected = static_cast<int32_t>(width);
  a.max_pools = max_pools_of(p);
  const auto scratch =
      gpu.allocate(CudaIndexSelect::scratch_bytes(max_rows, a.max_pools, p.budget, score_bytes), "scratch");
  select.run(a, max_rows, scratch.data());
  const auto got = from_gpu<int32_t>(selected.data(), max_rows * width), n = from_gpu<int32_t>(counts.data(), max_rows);
  const auto gap = from_gpu<float>(gaps.data(), max_rows);
  Found found;
  for (int64_t row = 0; row < max_rows; ++row) {
    const int32_t count = n[static_cast<size_t>(row)];
    const auto begin = got.begin() + row * width;
    if (row >= rows) {
      EXPECT_EQ(count, untouched);
      EXPECT_TRUE(std::all_of(begin, begin + width, [](int32_t x) { return x == untouched; }));
      continue;
    }
    EXPECT_TRUE(count > 0 && count <= width) << count;
    found.selected.emplace_back(begin, begin + std::clamp<int64_t>(count, 0, width));
    found.gaps.push_back(gap[static_cast<size_t>(row)]);
    EXPECT_TRUE(std::all_of(begin + count, begin + width, [](int32_t x) { return x == untouched; }));
  }
  return found;
}

Found on_the_cpu(const Problem& p) {
  device::Threads threads(1);
  test::TestPlane plane = plane_of(p);
  std::vector<float> q = p.q, weights = p.weights;
  const int64_t width = (p.budget + 1) * kpool - 1, most = max_pools_of(p);
  std::vector<float> scores(static_cast<size_t>(most));
  std::vector<int32_t> order(static_cast<size_t>(most));
  Found found;
  int64_t first_row = 0;
  for (const auto& s : p.segments) {
    std::vector<int32_t> selected(static_cast<size_t>(s.rows * width)), counts(static_cast<size_t>(s.rows));
    std::vector<float> gaps(static_cast<size_t>(s.rows));
    IndexSelect a;
    a.heads = p.heads;
    a.dim = p.dim;
    a.kpool = kpool;
    a.budget = p.budget;
    a.position = s.position;
    a.rows = s.rows;
    a.q = q.data() + first_row * p.heads * p.dim;
    a.head_weights = weights.data() + first_row * p.heads;
    a.pooled = plane.host(s.pages);
    a.max_pools = most;
    a.scores = scores.data();
    a.order = order.data();
    a.selected = selected.data();
    a.max_selected = width;
    a.counts = counts.data();
    a.gaps = gaps.data();
    index_select(threads, a);
    for (int64_t row = 0; row < s.rows; ++row) {
      const auto begin = selected.begin() + row * width;
      found.selected.emplace_back(begin, begin + counts[static_cast<size_t>(row)]);
      found.gaps.push_back(gaps[static_cast<size_t>(row)]);
    }
    first_row += s.rows;
  }
  return found;
}

// Equal wherever the scores at the cut are further apart than fp32 sums in another order can be (scores are of size 1,
// so that `closest` is some units in the last place of their largest sums).
void expect_same(const Found& got, const Found& expected, int64_t most_ties = 0, float closest = 2e-6f) {
  ASSERT_EQ(got.selected.size(), expected.selected.size());
  int64_t close = 0;
  for (size_t row = 0; row < got.selected.size(); ++row) {
    const float gap = expected.gaps[row];
    if (gap < closest) {
      ++close;
      continue;
    }
    EXPECT_EQ(got.selected[row], expected.selected[row]) << "row " << row << ", gap " << gap;
    if (std::isinf(gap)) {
      EXPECT_EQ(got.gaps[row], gap) << row;
    } else {
      EXPECT_NEAR(got.gaps[row], gap, closest) << row;
    }
  }
  EXPECT_LE(close, most_ties);
}

TEST(IndexSelectGpu, AsOnTheCpu) {
  // A stream with fewer pools than the budget, one that crosses it, long ones; units of 32 rows and more.
  const std::vector<test::PagedTestSegment> segments = {
      {0, 0, 3, {}}, {1, 20, 37, {}}, {2, 1301, 2, {}}, {3, 27, 1, {}}};
  for (const auto kind : {RecordKind::bf16, RecordKind::index_fp8}) {
    SCOPED_TRACE(std::string(quant::name_of(kind)));
    const Problem tiny = make_problem(kind, 32, 5, 3, segments);
    expect_same(on_the_gpu(tiny), on_the_cpu(tiny));
    const Problem nano = make_problem(kind, 128, 4, 6, segments);
    expect_same(on_the_gpu(nano), on_the_cpu(nano));
    const Problem real = make_problem(kind, 128, 32, 50, {{0, 1998, 5, {}}});
    expect_same(on_the_gpu(real), on_the_cpu(real));
  }
}

// 512 pools of 32 heads' choice, before, at and far beyond the length where it begins.
TEST(IndexSelectGpu, RealDimensions) {
  if (device::gpu_is_emulated()) GTEST_SKIP() << "takes the emulator too long";
  const std::vector<test::PagedTestSegment> segments = {{0, 2040, 20, {}}, {1, 33000, 2, {}}, {2, 8190, 16, {}}};
  for (const auto kind : {RecordKind::bf16, RecordKind::index_fp8}) {
    SCOPED_TRACE(std::string(quant::name_of(kind)));
    const Problem p = make_problem(kind, 128, 32, 512, segments);
    const Found all = on_the_gpu(p);
    expect_same(all, on_the_cpu(p), 4, 1e-5f);
    const Found alone = on_the_gpu(make_problem(kind, 128, 32, 512, {{1, 33001, 1, {}}}), 127);
    EXPECT_EQ(all.selected[21], alone.selected[0]);
    EXPECT_EQ(all.gaps[21], alone.gaps[0]);
  }
}

TEST(IndexSelectGpu, ARowDoesNotDependOnItsCompany) {
  for (const auto kind : {RecordKind::bf16, RecordKind::index_fp8}) {
    const Found all = on_the_gpu(make_problem(kind, 32, 5, 3, {{7, 50, 2, {}}, {1, 400, 40, {}}, {2, 333, 1, {}}}), 9);
    const Found alone = on_the_gpu(make_problem(kind, 32, 5, 3, {{2, 333, 1, {}}}), 0);
    const Found cut = on_the_gpu(make_problem(kind, 32, 5, 3, {{3, 9, 1, {}}, {1, 431, 9, {}}}), 0);
    EXPECT_EQ(all.selected.back(), alone.selected.back());
    EXPECT_EQ(all.gaps.back(), alone.gaps.back());
    for (size_t row = 0; row < 9; ++row) {
      EXPECT_EQ(all.selected[2 + 31 + row], cut.selected[1 + row]) << row;
      EXPECT_EQ(all.gaps[2 + 31 + row], cut.gaps[1 + row]) << row;
    }
  }
}

TEST(IndexSelectGpu, BatchesOfRowsThatFitTheScratch) {
  // Two rows at a time, which cut units and segments anywhere; and one row that is larger than the limit.
  const Problem p = make_problem(RecordKind::index_fp8, 32, 5, 3, {{0, 7, 5, {}}, {1, 60, 8, {}}, {2, 90, 3, {}}});
  const Found at_once = on_the_gpu(p);
  const int64_t row_bytes = 4 * max_pools_of(p);
  for (const int64_t bytes : {2 * row_bytes + 4, int64_t{4}}) {
    const Found in_batches = on_the_gpu(p, 2, bytes);
    EXPECT_EQ(in_batches.selected, at_once.selected);
    EXPECT_EQ(in_batches.gaps, at_once.gaps);
  }
  EXPECT_LT(CudaIndexSelect::scratch_bytes(8192, 262144, 512), int64_t{192} << 20);
}

TEST(IndexSelectGpu, TiesGoToTheLowerPool) {
  Problem p = make_problem(RecordKind::bf16, 32, 5, 20, {{0, 2000, 3, {}}});
  for (float& w : p.weights) w = std::abs(w);
  for (size_t pool = 0; pool < 500; ++pool) {
    // Ten pools of one value and ten of another stand out by position; most keys are zero, whose scores are exactly 0.
    const float value = pool % 50 == 7 ? 2.0f : pool % 50 == 31 ? 1.0f : 0.0f;
    std::fill_n(p.keys[0].begin() + static_cast<int64_t>(pool) * 32, 32, value);
  }
  for (float& x : p.q) x = std::abs(x);
  const Found got = on_the_gpu(p);
  const auto expect_pools = [&](const std::vector<int32_t>& selected, const std::set<int32_t>& pools) {
    std::set<int32_t> found;
    for (size_t i = 0; i < 20; ++i) found.insert(selected[4 * i] / kpool);
    EXPECT_EQ(found, pools);
    EXPECT_TRUE(std::is_sorted(selected.begin(), selected.end()));
  };
  std::set<int32_t> pools;
  for (int32_t i = 0; i < 10; ++i) pools.insert({50 * i + 7, 50 * i + 31});
  for (const auto& selected : got.selected) expect_pools(selected, pools);
  // With room for five more: the five lowest of all that tie at 0.
  p.budget = 25;
  pools.insert({0, 1, 2, 3, 4});
  for (const auto& selected : on_the_gpu(p).selected) {
    std::set<int32_t> found;
    for (size_t i = 0; i < 25; ++i) found.insert(selected[4 * i] / kpool);
    EXPECT_EQ(found, pools);
  }
}

TEST(IndexSelectGpu, ManyPoolsAreChosenChunkByChunk) {
  // More than two chunks of 16,384 pools; equal keys in all of them, so that ties cross chunks.
  Problem p = make_problem(RecordKind::bf16, 32, 1, 30, {{0, 4 * 33000, 1, {}}});
  for (int64_t pool = 0; pool < 33000; pool += 1000) {
    std::fill_n(p.keys[0].begin() + pool * 32, 32, 0.0f);
    for (int64_t d = 0; d < 32; ++d) p.keys[0][static_cast<size_t>(pool * 32 + d)] = 4.0f * p.q[static_cast<size_t>(d)];
  }
  p.weights[0] = 1.0f;
  const Found got = on_the_gpu(p);
  ASSERT_EQ(got.selected.size(), 1u);
  std::vector<int32_t> expected;  // 33 pools tie at the top
  for (int32_t pool = 0; pool < 30 * 1000; pool += 1000)
    for (int32_t j = 0; j < kpool; ++j) expected.push_back(pool * kpool + j);
  expected.push_back(4 * 33000);
  EXPECT_EQ(got.selected[0], expected);
  EXPECT_EQ(got.gaps[0], 0.0f);
  // Without ties.
  const Problem plain = make_problem(RecordKind::index_fp8, 32, 3, 30, {{0, 4 * 16384 + 1, 1, {}}});
  expect_same(on_the_gpu(plain), on_the_cpu(plain));
}

TEST(IndexSelectGpu, NaNsAreWorst) {
  Problem p = make_problem(RecordKind::bf16, 32, 5, 3, {{0, 99, 1, {}}});
  p.weights[2] = test::not_a_number;  // every score
  EXPECT_EQ(on_the_gpu(p).selected[0], (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST(IndexSelectGpu, RefusesWhatItsKernelsCannotDo) {
  const CudaIndexSelect select(device::gpu_under_test(), device::model_defines({}));
  IndexSelectArgs a{};
  a.pooled.kind = static_cast<int32_t>(RecordKind::bf16);
  a.pooled.width = 128;
  a.heads = 65;
  a.budget = 512;
  a.max_pools = 4096;
  EXPECT_ANY_THROW(select.run(a, 1, nullptr));
  a.heads = 32;
  a.pooled.kind = static_cast<int32_t>(RecordKind::f32);
  EXPECT_ANY_THROW(select.run(a, 1, nullptr));
  a.pooled.kind = static_cast<int32_t>(RecordKind::bf16);
  a.max_pools = 1 << 20;
  EXPECT_ANY_THROW(select.run(a, 1, nullptr));
}

TEST(SelectionShareGpu, AChainGoesOnFromTheLastRow) {
  device::Gpu& gpu = device::gpu_under_test();
  const CudaSelectionShare share(gpu, device::model_defines({}));
  constexpr int32_t width = 12;
  const test::GpuStep step({{1, 30, 2, {1}}, {0, 7, 1, {2}}});
  std::vector<int32_t> selected(3 * width, untouched);
  const std::vector<int32_t> of_last = {3, 9, 31}, of_other = {0, 1, 2, 3, 4, 5, 6, 7};
  selected[0] = 5;
  std::copy(of_last.begin(), of_last.end(), selected.begin() + width);
  std::copy(of_other.begin(), of_other.end(), selected.begin() + 2 * width);
  const auto gpu_selected = on_gpu(selected), counts = on_gpu(std::vector<int32_t>{1, 3, 8}),
             shared = on_gpu(std::vector<int32_t>(2 * width, untouched)),
             shared_counts = on_gpu(std::vector<int32_t>(2, untouched));
  SelectionShareArgs a{step.view,
                       gpu_selected.as<int32_t>(),
                       counts.as<int32_t>(),
                       nullptr,
                       shared.as<int32_t>(),
                       shared_counts.as<int32_t>(),
                       width,
                       0};
  share.leave(a, 4);
  EXPECT_EQ(from_gpu<int32_t>(shared_counts.data(), 2), (std::vector<int32_t>{8, 3}));
  // Two rows of a chain for slot 1, one for slot 0.
  const auto gaps = on_gpu(std::vector<float>(3, 0.0f));
  a.gaps = gaps.as<float>();
  const test::GpuStep first({{1, 32, 1, {1}}, {0, 8, 1, {2}}}), second({{1, 33, 1, {1}}});
  a.step = first.view;
  share.reuse(a, 4);
  auto got = from_gpu<int32_t>(gpu_selected.data(), 2 * width);
  EXPECT_EQ(from_gpu<int32_t>(counts.data(), 2), (std::vector<int32_t>{4, 9}));
  EXPECT_EQ(std::vector<int32_t>(got.begin(), got.begin() + 4), (std::vector<int32_t>{3, 9, 31, 32}));
  EXPECT_EQ(got[width + 8], 8);
  a.step = second.view;
  share.reuse(a, 4);
  got = from_gpu<int32_t>(gpu_selected.data(), width);
  EXPECT_EQ(from_gpu<int32_t>(counts.data(), 1)[0], 5);
  EXPECT_EQ(std::vector<int32_t>(got.begin(), got.begin() + 5), (std::vector<int32_t>{3, 9, 31, 32, 33}));
  EXPECT_EQ(from_gpu<float>(gaps.data(), 1)[0], std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace tandem::ops::index_select_gpu_test
