// The feed-forward's kernels against the CPU's arithmetic on the same bf16 values, rounded where experts_cuda.h says;
// and their bits against each other.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "base/error.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/experts/experts.h"
#include "ops/experts/experts_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::experts_gpu_test {
namespace {

using device::from_gpu;
using device::GpuMemory;
using device::on_gpu;
using test::Random;

struct Sizes {
  int64_t hidden = 0, experts = 0, per_token = 0, width = 0, shared_width = 0, shared_leaf = 0, rows = 0;
};

struct StoredMlp {
  test::StoredMatrix gate, up, down;
  GpuMemory gpu_gate, gpu_up, gpu_down;
  ExpertPointers pointers() const { return {gpu_gate.data(), gpu_up.data(), gpu_down.data()}; }
};

// cancelling: the first and the last column of gate and up are equal (see make_layer).
StoredMlp random_mlp(Random& random, bool cancelling, int64_t hidden, int64_t width, int64_t leaf = -1) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(hidden));
  const float down_scale = 1.0f / std::sqrt(static_cast<float>(width));
  StoredMlp mlp;
  mlp.gate = test::random_matrix(random, WeightFormat::bf16, width, hidden, {.scale = scale});
  mlp.up = test::random_matrix(random, WeightFormat::bf16, width, hidden, {.scale = scale});
  mlp.down =
      test::random_matrix(random, WeightFormat::bf16, hidden, width, {.scale = down_scale, .leaf_columns = leaf});
  for (test::StoredMatrix* m : {&mlp.gate, &mlp.up}) {
    std::byte* row = m->data.data();
    for (int64_t o = 0; cancelling && o < width; ++o, row += 2 * hidden) std::copy_n(row, 2, row + 2 * (hidden - 1));
  }
  mlp.gpu_gate = on_gpu(mlp.gate.data);
  mlp.gpu_up = on_gpu(mlp.up.data);
  mlp.gpu_down = on_gpu(mlp.down.data);
  return mlp;
}

struct Layer {
  Sizes sizes;
  float limit = 1.5f;
  std::vector<StoredMlp> routed;
  std::optional<StoredMlp> shared;
  std::vector<int32_t> chosen;
  std::vector<float> weights, x;  // x: bf16 values
};

std::vector<int32_t> some_experts(Random& random, const Sizes& s) {
  std::vector<int32_t> some;
  while (static_cast<int64_t>(some.size()) < s.per_token) {
    const auto e = static_cast<int32_t>(random.below(s.experts));
    if (std::find(some.begin(), some.end(), e) == some.end()) some.push_back(e);
  }
  std::sort(some.begin(), some.end());
  return some;
}

// cancelling: a sum starts with 30,000·w and ends with −30,000·w, so that what is rounded away between shows in the
// activation's bf16 value: another order of additions gives other bits.
Layer make_layer(const Sizes& s, uint64_t seed, bool cancelling = false) {
  Random random(seed);
  Layer layer;
  layer.sizes = s;
  for (int64_t e = 0; e < s.experts; ++e) layer.routed.push_back(random_mlp(random, cancelling, s.hidden, s.width));
  if (s.shared_width > 0) layer.shared = random_mlp(random, cancelling, s.hidden, s.shared_width, s.shared_leaf);
  for (int64_t r = 0; r < s.rows; ++r) {
    const std::vector<int32_t> some = some_experts(random, s);
    layer.chosen.insert(layer.chosen.end(), some.begin(), some.end());
  }
  layer.weights = random.uniforms(s.rows * s.per_token, 0.1f, 2.0f);
  layer.x = as_bf16_values(random.normals(s.rows * s.hidden, 2.0f));
  for (int64_t r = 0; cancelling && r < s.rows; ++r) {
    layer.x[static_cast<size_t>(r * s.hidden)] = 29952.0f;
    layer.x[static_cast<size_t>((r + 1) * s.hidden - 1)] = -29952.0f;
  }
  return layer;
}

// How a run is made: which rows of the layer, in which bucket, by which kernels, and which leaf.
struct How {
  int64_t first = 0, rows = 0, max_rows = 0;
  ExpertKernels kernels = ExpertKernels::by_rows;
  int leaf = -1;
};

// A leaf's part of the layer's MLPs in device memory.
struct Parts {
  ExpertShape shape;
  std::vector<ExpertPointers> routed;
  ExpertPointers shared{};
  std::vector<GpuMemory> cut;  // what had to be copied: columns of down
};

Parts parts_of(const Layer& layer, int leaf) {
  const Sizes& s = layer.sizes;
  Parts parts;
  parts.shape = {s.hidden, s.experts, s.per_token, 0, s.experts, s.width, s.shared_width, s.shared_leaf, layer.limit};
  const int64_t border = (s.experts + 1) / 2;
  if (leaf >= 0) {
    parts.shape.first_routed = leaf * border;
    parts.shape.routed_count = leaf == 0 ? border : s.experts - border;
    parts.shape.shared_width = leaf == 0 ? s.shared_leaf : s.shared_width - s.shared_leaf;
    parts.shape.shared_leaf = parts.shape.shared_width;
  }
  for (int64_t e = 0; e < parts.shape.routed_count; ++e)
    parts.routed.push_back(layer.routed[static_cast<size_t>(parts.shape.first_routed + e)].pointers());
  if (parts.shape.shared_width == 0) return parts;
  parts.shared = layer.shared->pointers();
  if (leaf < 0) return parts;
  const int64_t first = leaf * s.shared_leaf, width = parts.shape.shared_width;
  std::vector<std::byte> columns;
  for (int64_t o = 0; o < s.hidden; ++o) {
    const std::byte* row = layer.shared->down.view.data + 2 * (o * s.shared_width + first);
    columns.insert(columns.end(), row, row + 2 * width);
  }
  parts.cut.push_back(on_gpu(columns));
  parts.shared = {layer.shared->gpu_gate.data() + 2 * first * s.hidden,
                  layer.shared->gpu_up.data() + 2 * first * s.hidden, parts.cut.back().data()};
  return parts;
}

template <typename T>
std::vector<T> rows_of(const std::vector<T>& all, int64_t first, int64_t rows, int64_t width) {
  return {all.begin() + first * width, all.begin() + (first + rows) * width};
}

// The rows' y; `sums` gets the fp32 sums of a leaf.
std::vector<uint16_t> run(const CudaExperts& experts_on_gpu, const Layer& layer, How how,
                          std::vector<float>* sums = nullptr) {
  const Sizes& s = layer.sizes;
  if (how.rows == 0) how.rows = s.rows - how.first;
  if (how.max_rows == 0) how.max_rows = how.rows;
  const Parts parts = parts_of(layer, how.leaf);
  // Rows beyond the count exist in memory; their experts are no experts.
  std::vector<int32_t> chosen = rows_of(layer.chosen, how.first, how.rows, s.per_token);
  chosen.resize(static_cast<size_t>(how.max_rows * s.per_token), 1 << 20);
  std::vector<uint16_t> x = to_bf16(rows_of(layer.x, how.first, how.rows, s.hidden));
  x.resize(static_cast<size_t>(how.max_rows * s.hidden), 0x7fff);
  const auto count = on_gpu(std::vector<int32_t>{static_cast<int32_t>(how.rows)});
  const auto gpu_chosen = on_gpu(chosen), gpu_x = on_gpu(x);
  const auto weights = on_gpu(rows_of(layer.weights, how.first, how.rows, s.per_token)), routed = on_gpu(parts.routed);
  const GpuMemory scratch =
      device::gpu_under_test().allocate(CudaExperts::scratch_bytes(parts.shape, how.max_rows), "scratch");
  device::gpu_under_test().fill(scratch.data(), 0xff, scratch.size());  // NaN
  const auto y = on_gpu(std::vector<uint16_t>(static_cast<size_t>(how.max_rows * s.hidden), 0x7fff));
  const auto leaf = on_gpu(test::unwritten(how.max_rows * s.hidden));
  ExpertRows rows;
  rows.rows = count.as<int32_t>();
  rows.chosen = gpu_chosen.as<int32_t>();
  rows.weights = weights.as<float>();
  rows.routed = routed.as<ExpertPointers>();
  rows.shared = parts.shared;
  rows.x = gpu_x.as<device::bf16>();
  rows.x_stride = rows.y_stride = s.hidden;
  rows.leaf = how.leaf;
  rows.y = y.as<device::bf16>();
  rows.leaf_sum = leaf.as<float>();
  rows.scratch = scratch.data();
  experts_on_gpu.run(parts.shape, rows, how.max_rows, how.kernels);
  auto got = from_gpu<uint16_t>(y.data(), how.max_rows * s.hidden);
  auto got_sums = from_gpu<float>(leaf.data(), how.max_rows * s.hidden);
  for (auto i = static_cast<size_t>(how.leaf < 0 ? how.rows * s.hidden : 0); i < got.size(); ++i)
    if (got[i] != 0x7fff) ADD_FAILURE() << "a row that is not there, value " << i;
  for (auto i = static_cast<size_t>(how.leaf < 0 ? 0 : how.rows * s.hidden); i < got_sums.size(); ++i)
    if (!std::isnan(got_sums[i])) ADD_FAILURE() << "a sum that is not there, value " << i;
  got.resize(static_cast<size_t>(how.rows * s.hidden));
  got_sums.resize(got.size());
  if (sums != nullptr) *sums = got_sums;
  return got;
}

// The CPU's bf16 mode on rows [first, first + rows).
std::vector<float> expected_rows(const Layer& layer, int64_t first, int64_t rows) {
  device::Threads one(1);
  const Sizes& s = layer.sizes;
  ExpertScratch scratch(rows, s.hidden, s.experts, s.per_token, s.width, s.shared_width);
  const auto view = [](const StoredMlp& mlp) { return Mlp{mlp.gate.view, mlp.up.view, mlp.down.view}; };
  std::vector<Mlp> routed;
  for (const StoredMlp& mlp : layer.routed) routed.push_back(view(mlp));
  const Mlp shared = layer.shared ? view(*layer.shared) : Mlp();
  std::vector<float> y = test::unwritten(rows * s.hidden);
  Experts a;
  a.hidden = s.hidden;
  a.swiglu_limit = layer.limit;
  a.routed = routed.data();
  a.experts = a.routed_count = s.experts;
  a.per_token = s.per_token;
  a.chosen = layer.chosen.data() + first * s.per_token;
  a.weights = layer.weights.data() + first * s.per_token;
  a.shared = layer.shared ? &shared : nullptr;
  a.rows = rows;
  a.x = layer.x.data() + first * s.hidden;
  a.y = y.data();
  a.scratch = &scratch;
  a.compute = Compute::bf16;
  experts(one, a);
  return y;
}

// The CPU adds a slice in another order, so sums differ by some 1e-7 of their largest value. Now and then that turns
// an activation to the neighbouring bf16 value, which moves y by 2^-8·|activation·down|: below the tolerance of half
// a per cent of the largest value; beside that y may be rounded to the other neighbour.
void expect_near(std::span<const uint16_t> got, const std::vector<float>& expected) {
  float largest = 0.0f;
  for (const float y : expected) largest = std::max(largest, std::abs(y));
  EXPECT_LE(bf16_distance(got.data(), expected, 0.005f * largest), 1);
}

// Slices of K that are short, widths that are no multiple of 16, one and two leaves, dense layers, nano's layer.
constexpr Sizes shapes[] = {
    {.hidden = 1112, .experts = 6, .per_token = 3, .width = 40, .rows = 11},
    {.hidden = 136, .experts = 5, .per_token = 2, .width = 72, .shared_width = 1160, .shared_leaf = 640, .rows = 9},
    {.hidden = 256, .experts = 8, .per_token = 2, .width = 128, .shared_width = 128, .shared_leaf = 128, .rows = 13},
    {.hidden = 264, .shared_width = 640, .shared_leaf = 384, .rows = 10},
    {.hidden = 72, .shared_width = 96, .shared_leaf = 96, .rows = 35},
};

constexpr ExpertKernels all_kernels[] = {ExpertKernels::few_rows, ExpertKernels::many_rows, ExpertKernels::warpgroups};

TEST(ExpertsGpu, AgainstTheCpu) {
  for (const device::KernelDimensions& dimensions : {device::KernelDimensions{}, {32, 72, 32, 4, 128}}) {
    const CudaExperts experts_on_gpu(device::gpu_under_test(), device::model_defines(dimensions));
    for (const Sizes& sizes : shapes) {
      SCOPED_TRACE(sizes.hidden);
      const Layer layer = make_layer(sizes, static_cast<uint64_t>(sizes.hidden));
      for (const ExpertKernels kernels : all_kernels) {
        expect_near(run(experts_on_gpu, layer, {.max_rows = sizes.rows + 1, .kernels = kernels}),
                    expected_rows(layer, 0, sizes.rows));
      }
    }
  }
}

// Few rows or many, alone or among others, at another place and in another bucket.
TEST(ExpertsGpu, BitsDoNotDependOnTheLaunch) {
  const CudaExperts experts_on_gpu(device::gpu_under_test(), device::model_defines({}));
  for (const Sizes& sizes : shapes) {
    const Layer layer = make_layer(sizes, static_cast<uint64_t>(50 + sizes.hidden), true);
    std::vector<float> few, many;  // of a leaf: what y rounds away shows, too
    run(experts_on_gpu, layer, {.kernels = ExpertKernels::few_rows, .leaf = 0}, &few);
    run(experts_on_gpu, layer, {.kernels = ExpertKernels::many_rows, .leaf = 0}, &many);
    EXPECT_TRUE(test::same_bits(few, many)) << sizes.hidden;
    const std::vector<uint16_t> all = run(experts_on_gpu, layer, {.kernels = ExpertKernels::few_rows});
    EXPECT_EQ(run(experts_on_gpu, layer, {.kernels = ExpertKernels::many_rows}), all) << sizes.hidden;
    const std::vector<uint16_t> last = rows_of(all, sizes.rows - 1, 1, sizes.hidden);
    const std::vector<uint16_t> three = rows_of(all, 2, 3, sizes.hidden);
    for (const ExpertKernels kernels : all_kernels) {
      EXPECT_EQ(run(experts_on_gpu, layer, {.first = sizes.rows - 1, .kernels = kernels}), last) << sizes.hidden;
      EXPECT_EQ(run(experts_on_gpu, layer, {.first = 2, .rows = 3, .max_rows = 9, .kernels = kernels}), three)
          << sizes.hidden;
    }
  }
}

// Enough rows for tiles of 128 in a bucket whose last rows are not there, and more than one tile an expert.
TEST(ExpertsGpu, BusyExperts) {
  const CudaExperts experts_on_gpu(device::gpu_under_test(), device::model_defines({}));
  const Sizes sizes{
      .hidden = 72, .experts = 3, .per_token = 2, .width = 24, .shared_width = 40, .shared_leaf = 24, .rows = 150};
  Layer layer = make_layer(sizes, 7);
  for (size_t i = 0; i < layer.chosen.size(); i += 2) layer.chosen[i] = 0, layer.chosen[i + 1] = i % 8 == 0 ? 1 : 2;
  const std::vector<uint16_t> many = run(experts_on_gpu, layer, {.max_rows = 160, .kernels = ExpertKernels::many_rows});
  EXPECT_EQ(run(experts_on_gpu, layer, {.kernels = ExpertKernels::few_rows}), many);
  EXPECT_EQ(run(experts_on_gpu, layer, {.max_rows = 160, .kernels = ExpertKernels::warpgroups}), many);
}

// More rows than the sort takes at a time.
TEST(ExpertsGpu, ManyRowsAreSorted) {
  const CudaExperts experts_on_gpu(device::gpu_under_test(), device::model_defines({}));
  const Layer layer = make_layer({.hidden = 8, .experts = 40, .per_token = 2, .width = 8, .rows = 1100}, 8);
  const std::vector<uint16_t> many = run(experts_on_gpu, layer, {.kernels = ExpertKernels::many_rows});
  EXPECT_EQ(run(experts_on_gpu, layer, {.kernels = ExpertKernels::few_rows}), many);
  for (const int64_t first : {0, 1000, 1090})
    EXPECT_EQ(run(experts_on_gpu, layer, {.first = first, .rows = 10}), rows_of(many, first, 10, 8));
}

// As two ranks do it: each sums its leaf, the two sums are added and rounded. Rows for which a leaf has nothing are −0.
TEST(ExpertsGpu, LeavesApartGiveTheSameBits) {
  const CudaExperts experts_on_gpu(device::gpu_under_test(), device::model_defines({}));
  for (const Sizes& sizes : shapes) {
    Layer layer = make_layer(sizes, static_cast<uint64_t>(90 + sizes.hidden));
    for (int64_t i = 0; i < 2 * sizes.per_token; ++i)  // two rows whose experts are all in one leaf
      layer.chosen[static_cast<size_t>(i)] =
          static_cast<int32_t>(i < sizes.per_token ? i : sizes.experts - 2 * sizes.per_token + i);
    const std::vector<uint16_t> whole = run(experts_on_gpu, layer, {});
    for (const ExpertKernels kernels : all_kernels) {
      std::vector<float> first, second;
      run(experts_on_gpu, layer, {.kernels = kernels, .leaf = 0}, &first);
      run(experts_on_gpu, layer, {.kernels = kernels, .leaf = 1}, &second);
      for (size_t i = 0; i < first.size(); ++i)
        ASSERT_EQ(bf16_bits(first[i] + second[i]), whole[i]) << sizes.hidden << " value " << i;
      const bool no_second = sizes.experts > 0 && sizes.shared_width == sizes.shared_leaf;
      if (no_second) {
        EXPECT_TRUE(second[0] == 0.0f && std::signbit(second[0]));
      }
    }
  }
}

TEST(ExpertsGpu, RealDimensions) {
  if (device::gpu_is_emulated()) GTEST_SKIP() << "takes the emulator too long";
  const CudaExperts experts_on_gpu(device::gpu_under_test(), device::model_defines({}));
  const Layer layer = make_layer({.hidden = 4096,
                                  .experts = 3,
                                  .per_token = 2,
                                  .width = 2048,
                                  .shared_width = 1280,
                                  .shared_leaf = 640,
                                  .rows = 300},
                                 1);
  const std::vector<uint16_t> all = run(experts_on_gpu, layer, {.kernels = ExpertKernels::many_rows});
  EXPECT_EQ(run(experts_on_gpu, layer, {.kernels = ExpertKernels::warpgroups}), all);
  for (const int64_t rows : {1, 8, 33, 64}) {
    EXPECT_EQ(run(experts_on_gpu, layer, {.first = 5, .rows = rows, .kernels = ExpertKernels::few_rows}),
              rows_of(all, 5, rows, 4096));
  }
  expect_near(rows_of(all, 7, 2, 4096), expected_rows(layer, 7, 2));
}

TEST(ExpertsGpu, ScratchAndRefusals) {
  device::Gpu& gpu = device::gpu_under_test();
  const CudaExperts experts_on_gpu(gpu, device::model_defines({}));
  ExpertShape shape{.hidden = 4096,
                    .experts = 288,
                    .per_token = 8,
                    .routed_count = 144,
                    .width = 2048,
                    .shared_width = 1024,
                    .shared_leaf = 1024,
                    .swiglu_limit = 10.0f};
  EXPECT_LT(CudaExperts::scratch_bytes(shape, 8192), int64_t{600} << 20);  // activations 272 MiB, outputs in pieces
  EXPECT_LT(CudaExperts::scratch_bytes(shape, 1), int64_t{1} << 20);
  shape.width = 2044;
  EXPECT_THROW(experts_on_gpu.run(shape, {}, 1), Error);
}

}  // namespace
}  // namespace tandem::ops::experts_gpu_test
