// sparse_attend.cu against sparse_attend() on the same rounded inputs, by every plan.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "device/kernel_dimensions.h"
#include "ops/attend/sparse_attend.h"
#include "ops/attend/sparse_attend_cuda.h"
#include "ops/latent/test_gpu_pages.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::sparse_attend_gpu_test {
namespace {

using device::from_gpu;
using device::on_gpu;
using quant::RecordKind;

constexpr uint16_t untouched = 0x7fc3;

struct Stream {
  int32_t slot, position;
  std::vector<std::vector<int32_t>> selected;  // of each row
};

struct Problem {
  RecordKind kind = RecordKind::bf16;
  int64_t rank = 72, heads = 5, rows_of_page = 8;
  float outer_scale = 0.0f, size = 1.0f;  // size: of queries; large ones make a few keys take everything
  std::vector<Stream> streams;
};

// Ascending tokens below `end`; `page_parity` 0 or 1 keeps to pages of one leaf of 8 rows.
std::vector<int32_t> tokens_below(test::Random& random, int32_t end, int32_t count, int32_t page_parity = -1) {
  std::set<int32_t> tokens;
  while (static_cast<int32_t>(tokens.size()) < count) {
    const auto token = static_cast<int32_t>(random.below(end));
    if (page_parity < 0 || token / 8 % 2 == page_parity) tokens.insert(token);
  }
  return {tokens.begin(), tokens.end()};
}

// The problem's numbers depend on slot and position alone.
struct Data {
  std::vector<test::PagedTestSegment> segments;
  std::vector<float> q;
  std::vector<int32_t> selected, counts;
  int64_t rows = 0, max_selected = 0;
  test::TestPlane plane;

  explicit Data(const Problem& p) : plane(make_plane(p)) {
    for (const Stream& s : p.streams)
      for (const auto& row : s.selected) max_selected = std::max(max_selected, static_cast<int64_t>(row.size()) + 1);
    for (const Stream& s : p.streams) {
      for (size_t i = 0; i < s.selected.size(); ++i) {
        test::Random random(static_cast<uint64_t>(s.slot * 1000 + s.position) + i);
        const std::vector<float> of_row = as_bf16_values(random.normals(p.heads * p.rank, p.size));
        q.insert(q.end(), of_row.begin(), of_row.end());
        std::vector<int32_t> row = s.selected[i];
        counts.push_back(static_cast<int32_t>(row.size()));
        row.resize(static_cast<size_t>(max_selected), -1);
        selected.insert(selected.end(), row.begin(), row.end());
        ++rows;
      }
    }
  }

 private:
  test::TestPlane make_plane(const Problem& p) {
    int32_t pages = 1;
    for (size_t i = 0; i < p.streams.size(); ++i) {
      const Stream& s = p.streams[i];
      const auto n = static_cast<int32_t>(s.selected.size());
      segments.push_back({s.slot, s.position, n,
                          test::scattered_pages(static_cast<int32_t>((s.position + n - 1) / p.rows_of_page + 1),
                                                static_cast<int32_t>(i), static_cast<int32_t>(p.streams.size()))});
      for (const int32_t page : segments.back().pages) pages = std::max(pages, page + 1);
    }
    test::TestPlane made(p.kind, p.rank, p.rows_of_page, pages, p.outer_scale);
    for (const auto& segment : segments) {
      test::Random random(static_cast<uint64_t>(segment.slot) + 99);
      const PagedPlane host = made.host(segment.pages);
      for (int64_t t = 0; t < segment.position + segment.rows; ++t)
        host.store(t, as_bf16_values(random.normals(p.rank)).data());
    }
    made.upload();
    return made;
  }
};

float scale_of(const Problem& p) { return 1.0f / std::sqrt(static_cast<float>(p.rank)); }

std::vector<uint16_t> on_the_gpu(const Problem& p, std::optional<SparseAttendPlan> plan) {
  device::KernelDimensions dimensions;
  if (p.rank != 512) dimensions = {32, 72, 32, 4, 128};
  device::Gpu& gpu = device::gpu_under_test();
  const CudaSparseAttend attend(gpu, device::model_defines(dimensions), plan);
  Data data(p);
  const test::GpuStep step(data.segments);
  const int64_t max_rows = data.rows + 2, width = p.heads * p.rank;
  const auto q = on_gpu(to_bf16(data.q)), selected = on_gpu(data.selected), counts = on_gpu(data.counts);
  const auto out = on_gpu(std::vector<uint16_t>(static_cast<size_t>(max_rows * width), untouched));
  SparseAttendArgs a{};
  a.step = step.view;
  a.q = q.as<device::bf16>();
  a.out = out.as<device::bf16>();
  a.selected = selected.as<int32_t>();
  a.counts = counts.as<int32_t>();
  a.latent = data.plane.view;
  a.max_selected = static_cast<int32_t>(data.max_selected);
  a.heads = static_cast<int32_t>(p.heads);
  a.scale = scale_of(p);
  const auto scratch = gpu.allocate(attend.scratch_bytes(max_rows, p.heads, p.rank, data.max_selected), "scratch");
  attend.run(a, max_rows, scratch.data());
  std::vector<uint16_t> got = from_gpu<uint16_t>(out.data(), max_rows * width);
  EXPECT_TRUE(std::all_of(got.begin() + data.rows * width, got.end(), [](uint16_t x) { return x == untouched; }));
  got.resize(static_cast<size_t>(data.rows * width));
  return got;
}

std::vector<float> on_the_cpu(const Problem& p) {
  device::Threads threads(1);
  Data data(p);
  std::vector<float> out(data.q.size());
  int64_t first = 0;
  for (const auto& segment : data.segments) {
    SparseAttend a;
    a.heads = p.heads;
    a.kv_lora_rank = p.rank;
    a.rows = segment.rows;
    a.scale = scale_of(p);
    a.q = data.q.data() + first * p.heads * p.rank;
    a.latent = data.plane.host(segment.pages);
    a.selected = data.selected.data() + first * data.max_selected;
    a.counts = data.counts.data() + first;
    a.max_selected = data.max_selected;
    std::vector<float> scratch(static_cast<size_t>(sparse_attend_scratch(a.max_selected, p.rank, p.kind)));
    std::vector<const float*> pointers(static_cast<size_t>(a.max_selected));
    a.scratch = scratch.data();
    a.pointers = pointers.data();
    a.out = out.data() + first * p.heads * p.rank;
    sparse_attend(threads, a);
    first += segment.rows;
  }
  return out;
}

const SparseAttendPlan plans[] = {{true, 1}, {true, 2}, {false, 1}, {false, 2}};

// One unit of bf16 where fp32 sums in another order tip a rounding; probabilities are good to 2^-17, so values that
// cancel are good to some 1e-5 of the latents' size.
void expect_same(const Problem& p, const std::vector<SparseAttendPlan>& by) {
  SCOPED_TRACE(std::string(quant::name_of(p.kind)) + " of " + std::to_string(p.rank));
  const std::vector<float> expected = on_the_cpu(p);
  const std::vector<uint16_t> first = on_the_gpu(p, by[0]);
  EXPECT_LE(bf16_distance(first.data(), expected, 4e-5f), 1);
  for (size_t i = 1; i < by.size(); ++i) EXPECT_EQ(on_the_gpu(p, by[i]), first) << "plan " << i;
}

TEST(SparseAttendGpu, AsOnTheCpuByEveryPlan) {
  test::Random random(4);
  for (const auto kind :
       {RecordKind::bf16, RecordKind::latent_fp8, RecordKind::latent_fp8_row, RecordKind::latent_nvfp4}) {
    Problem p;
    p.kind = kind;
    p.heads = 19;
    // Many splits of both leaves; one leaf alone; whole tiles and splits; a single key.
    p.streams = {{1, 1399, {tokens_below(random, 1400, 1100)}},
                 {0, 700, {tokens_below(random, 700, 257, 1), tokens_below(random, 700, 64, 0), {5}}}};
    expect_same(p, {std::begin(plans), std::end(plans)});
    p.size = 12.0f;
    p.streams.erase(p.streams.begin());
    expect_same(p, {plans[0], plans[3]});
  }
}

TEST(SparseAttendGpu, RealRank) {
  test::Random random(6);
  for (const auto kind : {RecordKind::bf16, RecordKind::latent_fp8, RecordKind::latent_nvfp4}) {
    Problem p;
    p.kind = kind;
    p.rank = 512;
    p.heads = 18;
    p.outer_scale = kind == RecordKind::latent_nvfp4 ? 0x1p-9f : 0.0f;
    p.streams = {{1, 130, {tokens_below(random, 130, 90), tokens_below(random, 130, 131 - 20)}}};
    expect_same(p, {plans[1], plans[2], plans[3]});
  }
}

TEST(SparseAttendGpu, RealDimensions) {
  if (device::gpu_is_emulated()) GTEST_SKIP() << "takes the emulator too long";
  test::Random random(8);
  for (const auto kind :
       {RecordKind::bf16, RecordKind::latent_fp8, RecordKind::latent_fp8_row, RecordKind::latent_nvfp4}) {
    Problem p;
    p.kind = kind;
    p.rank = 512;
    p.rows_of_page = 256;
    p.outer_scale = kind == RecordKind::latent_nvfp4 ? 0x1p-9f : 0.0f;
    p.heads = 64;
    p.streams = {{1, 4099, {tokens_below(random, 4100, 2048), tokens_below(random, 4100, 2051)}},
                 {0, 2050, {tokens_below(random, 2051, 2051), {7}}}};
    expect_same(p, {std::begin(plans), std::end(plans)});
    p.heads = 32;  // one rank of two
    expect_same(p, {plans[1], plans[2]});
  }
}

TEST(SparseAttendGpu, ARowDoesNotDependOnItsCompany) {
  test::Random random(7);
  const std::vector<int32_t> x = tokens_below(random, 900, 700), y = tokens_below(random, 300, 50),
                             z = tokens_below(random, 300, 299);
  Problem all, alone;
  all.streams = {{3, 300, {y, z}}, {1, 899, {x}}};
  alone.streams = {{1, 899, {x}}};
  const std::vector<uint16_t> of_all = on_the_gpu(all, plans[3]), of_one = on_the_gpu(alone, plans[0]);
  EXPECT_EQ(std::vector<uint16_t>(of_all.end() - static_cast<int64_t>(of_one.size()), of_all.end()), of_one);
}

TEST(SparseAttendGpu, PlansFitTheMachine) {
  const int64_t h200 = 227 << 10, workstation = 99 << 10;
  const SparseAttendPlan one = sparse_attend_plan(1, 64, 512, 132, h200);
  EXPECT_TRUE(one.by_splits);
  EXPECT_EQ(one.head_tiles, 1);
  const SparseAttendPlan prompt = sparse_attend_plan(8192, 32, 512, 132, h200);
  EXPECT_FALSE(prompt.by_splits);
  EXPECT_EQ(prompt.head_tiles, 2);
  // Two blocks on a multiprocessor, with 1 KiB of each taken by the system.
  EXPECT_LE(2 * (sparse_attend_shared_bytes(prompt, 512) + 1024), 228 << 10);
  for (const int64_t rows : {1, 8, 33, 64, 8192}) {
    for (const int64_t heads : {2, 32, 64}) {
      for (const int64_t shared : {h200, workstation}) {
        const SparseAttendPlan plan = sparse_attend_plan(rows, heads, 512, 132, shared);
        EXPECT_EQ(plan.by_splits, 8 * rows * ((heads + 31) / 32) <= 132)
            << rows << " " << heads;  // never for lack of room
        EXPECT_LE(sparse_attend_shared_bytes(plan, 512), shared) << rows << " " << heads;
      }
    }
  }
}

// A step of few rows runs with the scratch that was laid out for the largest one, and its splits may take more room.
TEST(SparseAttendGpu, ScratchOfManyRowsHoldsTheSplitsOfFew) {
  device::GpuProperties h200;
  h200.multiprocessors = 132;
  h200.shared_bytes = 227 << 10;
  const auto bytes = [&](int64_t rows) { return CudaSparseAttend::scratch_bytes(h200, rows, 64, 512, 2051); };
  const int64_t of_many = bytes(2048);
  for (const int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 1000}) EXPECT_LE(bytes(rows), of_many) << rows;
  // 8 rows are cut: fp32 partial sums of each row, split (2051 / 64 + 2) and head.
  EXPECT_GE(of_many, int64_t{8} * 34 * 64 * 512 * 4);
}

TEST(SparseAttendGpu, RefusesPlanesOfFp32) {
  const CudaSparseAttend attend(device::gpu_under_test(), device::model_defines({}));
  SparseAttendArgs a{};
  a.latent.kind = static_cast<int32_t>(RecordKind::f32);
  EXPECT_ANY_THROW(attend.run(a, 1, nullptr));
}

}  // namespace
}  // namespace tandem::ops::sparse_attend_gpu_test
