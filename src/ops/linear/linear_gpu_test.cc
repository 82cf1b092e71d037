// linear.cu and linear_tiles.cu against the CPU's sums, and against each other bit by bit.
#include <cmath>

#include "base/error.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::linear_gpu_test {
namespace {

using device::from_gpu;
using device::on_gpu;

const CudaLinear& linear_on_gpu() {
  static const CudaLinear linear(device::gpu_under_test(), device::model_defines({}));
  return linear;
}

// Random operands of one product on both sides.
struct Product {
  int32_t out, in, leaf, stride, batch;
  int64_t max_rows;
  std::vector<float> w, x;
  device::GpuMemory gpu_w, gpu_x;

  Product(uint64_t seed, int32_t out_features, int32_t in_features, int32_t leaf_columns, int64_t rows,
          int32_t row_padding = 0, int32_t heads = 1)
      : out(out_features),
        in(in_features),
        leaf(leaf_columns),
        stride(in_features + row_padding),
        batch(heads),
        max_rows(rows),
        w(as_bf16_values(test::Random(seed).normals(int64_t{heads} * out * stride, 1.0f / std::sqrt(float(in))))),
        x(as_bf16_values(test::Random(seed + 1).normals(rows * heads * in))),
        gpu_w(on_gpu(to_bf16(w))),
        gpu_x(on_gpu(to_bf16(x))) {}

  // y [max_rows, batch, out]
  CudaLinearCall call(const device::GpuMemory& y, bool fp32) const {
    CudaLinearCall c{{gpu_w.as<device::bf16>(), out, in, stride, leaf},
                     gpu_x.as<device::bf16>(),
                     int64_t{batch} * in,
                     y.data(),
                     int64_t{batch} * out,
                     fp32,
                     batch};
    c.w_batch_stride = int64_t{out} * stride;
    c.x_batch_stride = in;
    c.y_batch_stride = out;
    return c;
  }
  int64_t values() const { return max_rows * batch * out; }

  // The CPU's fp32 sums of the same bf16 operands, [max_rows, batch, out].
  std::vector<float> expected() const {
    device::Threads threads(1);
    std::vector<float> y(static_cast<size_t>(values()));
    for (int32_t head = 0; head < batch; ++head) {
      Matrix m;
      m.format = WeightFormat::f32;
      m.data = reinterpret_cast<const std::byte*>(w.data() + int64_t{head} * out * stride);
      m.out_features = out;
      m.in_features = in;
      m.row_stride = stride;
      m.leaf_columns = leaf;
      const LinearCall c{&m, x.data() + head * in, int64_t{batch} * in, y.data() + head * out, int64_t{batch} * out};
      linear(threads, std::span(&c, 1), max_rows);
    }
    return y;
  }
};

constexpr uint32_t poison = 0x7fc12345;  // a NaN that nothing computes
device::GpuMemory poisoned(int64_t values) {
  return on_gpu(std::vector<uint32_t>(static_cast<size_t>(values), poison));
}
device::GpuMemory count_of(int64_t rows) { return on_gpu(std::vector<int32_t>{static_cast<int32_t>(rows)}); }

// fp32 results of the first `rows` rows with one tile; checks that the rows beyond are left alone.
std::vector<uint32_t> run_tile(const Product& p, int32_t tile, int64_t rows) {
  const auto y = poisoned(p.values()), count = count_of(rows);
  const CudaLinearCall call = p.call(y, true);
  linear_on_gpu().run_with(tile, std::span(&call, 1), count.as<int32_t>(), p.max_rows);
  std::vector<uint32_t> got = from_gpu<uint32_t>(y.data(), p.values());
  for (int64_t i = rows * p.batch * p.out; i < p.values(); ++i)
    EXPECT_EQ(got[static_cast<size_t>(i)], poison) << "a row that is not there";
  got.resize(static_cast<size_t>(rows * p.batch * p.out));
  return got;
}

// bf16 results are the CPU's fp32 sums rounded, but where the two sums stand on different sides of a border between two
// bf16 values (1), or cancel (2e-6 of an output's usual size).
TEST(LinearGpu, AgainstTheCpu) {
  struct Case {
    int32_t out, in, leaf, padding, batch;
    int64_t rows;
  };
  std::vector<Case> cases = {
      {40, 72, 72, 0, 1, 3}, {2, 256, 128, 8, 1, 1},    {24, 1096, 584, 0, 1, 9}, {72, 32, 32, 8, 3, 5},
      {40, 72, 0, 8, 1, 20}, {100, 648, 136, 0, 2, 66}, {128, 128, 64, 0, 1, 17},
  };
  if (!device::gpu_is_emulated())
    cases = {{4096, 16384, 8192, 0, 1, 1},
             {12288, 4096, 4096, 0, 1, 8},
             {512, 256, 256, 0, 64, 65},
             {4096, 4096, 2048, 0, 1, 300},
             // q_b_proj, indexer.wq_b, one head of f_b_proj after another, eh_proj, the router, b_proj, and one rank's
             // half of o_proj.
             {16384, 1536, 1536, 0, 1, 3},
             {4096, 1536, 1536, 0, 1, 17},
             {8192, 128, 128, 0, 1, 40},
             {4096, 8192, 8192, 0, 1, 2},
             {288, 4096, 4096, 0, 1, 33},
             {64, 4096, 4096, 0, 1, 16},
             {4096, 8192, 4096, 8192, 1, 5}};
  for (const Case& c : cases) {
    const Product p(static_cast<uint64_t>(c.out), c.out, c.in, c.leaf, c.rows, c.padding, c.batch);
    const std::vector<float> expected = p.expected();
    const auto y = poisoned(p.values()), count = count_of(c.rows);
    const CudaLinearCall call = p.call(y, false);
    linear_on_gpu().run(std::span(&call, 1), count.as<int32_t>(), c.rows);
    const auto got = from_gpu<uint16_t>(y.data(), p.values());
    EXPECT_LE(bf16_distance(got.data(), expected, 2e-6f), 1) << c.out << "x" << c.in << " " << c.rows << " rows";
  }
}

// A row's bits do not depend on the tile, on the other rows, on its place or on how many rows the launch could have.
TEST(LinearGpu, OneArithmetic) {
  struct Case {
    int32_t out, in, leaf, batch;
    int64_t rows;
  };
  std::vector<Case> cases = {{40, 1096, 584, 1, 16}, {24, 2112, 2112, 1, 9}, {136, 72, 72, 2, 133}};
  if (!device::gpu_is_emulated()) cases = {{4096, 16384, 8192, 1, 16}, {4224, 4096, 4096, 1, 2048}};
  for (const Case& c : cases) {
    const Product p(7, c.out, c.in, c.leaf, c.rows, 0, c.batch);
    const int64_t width = int64_t{c.batch} * c.out;
    const std::vector<uint32_t> all = run_tile(p, linear_tile_count - 1, c.rows);
    for (int32_t tile = 0; tile < linear_tile_count - 1; ++tile) {
      if (linear_tile(tile).by_slices && c.rows > linear_tile(tile).rows) continue;
      EXPECT_EQ(run_tile(p, tile, c.rows), all) << linear_tile(tile).kernel;
    }
    // Some rows alone.
    const auto y = poisoned(width), one = count_of(1);
    for (const int64_t row : {int64_t{0}, int64_t{5}, c.rows - 1}) {
      CudaLinearCall call = p.call(y, true);
      call.x += row * call.x_stride;
      linear_on_gpu().run(std::span(&call, 1), one.as<int32_t>(), 1);
      const auto got = from_gpu<uint32_t>(y.data(), width);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin() + row * width)) << row << " of " << c.rows;
    }
    // A bucket that is larger than the step.
    const int64_t few = c.rows / 2;
    const std::vector<uint32_t> some = run_tile(p, linear_tile_count - 1, few);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
    if (c.rows <= 16) {
      EXPECT_EQ(run_tile(p, 3, few), some);  // 16 rows
    }
  }
}

// Slices, and leaves, are sums of their own that are added in ascending order.
TEST(LinearGpu, SlicesAndLeavesAreAddedInOrder) {
  const int32_t out = 24, in = 1736, leaf = 1192;  // slices of 512, 512 and 168, then 512 and 32
  const int64_t rows = 3;
  const Product p(11, out, in, leaf, rows);
  const std::vector<uint32_t> whole = run_tile(p, 0, rows);
  std::vector<float> leaf_sums[2];
  for (const auto& [first, end] : {std::pair{0, 512}, {512, 1024}, {1024, 1192}, {1192, 1704}, {1704, 1736}}) {
    const auto y = poisoned(rows * out), count = count_of(rows);
    CudaLinearCall call = p.call(y, true);
    call.matrix.data += first;
    call.matrix.in_features = call.matrix.leaf_columns = end - first;
    call.x += first;
    linear_on_gpu().run(std::span(&call, 1), count.as<int32_t>(), rows);
    const auto slice = from_gpu<float>(y.data(), rows * out);
    std::vector<float>& sum = leaf_sums[first < leaf ? 0 : 1];
    if (sum.empty()) sum.assign(slice.size(), 0.0f);
    for (size_t i = 0; i < slice.size(); ++i) sum[i] += slice[i];
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    const float sum = leaf_sums[0][i] + leaf_sums[1][i];
    EXPECT_EQ(whole[i], std::bit_cast<uint32_t>(sum)) << i;
  }
}

// The projections of a layer in one launch, with shapes, precisions and strides of their own.
TEST(LinearGpu, SeveralCallsInOneLaunch) {
  for (const int64_t rows : {1, 7, 13, 70}) {
    const Product q(1, 96, 136, 136, rows), b(2, 2, 136, 136, rows), heads(3, 40, 24, 16, rows, 0, 2);
    const Product* products[] = {&q, &b, &heads};
    std::vector<device::GpuMemory> outputs;
    std::vector<CudaLinearCall> calls;
    for (const Product* p : products) {
      outputs.push_back(poisoned(p->values() + rows * 8));
      calls.push_back(p->call(outputs.back(), p == &b));
    }
    calls[0].y_stride += 8;  // beside other projections' outputs
    const auto count = count_of(rows);
    linear_on_gpu().run(calls, count.as<int32_t>(), rows);
    const std::vector<float> expected_q = q.expected(), expected_b = b.expected(), expected_heads = heads.expected();
    const auto got_q = from_gpu<uint16_t>(outputs[0].data(), rows * 104);
    for (int64_t r = 0; r < rows; ++r) {
      EXPECT_LE(bf16_distance(&got_q[static_cast<size_t>(r * 104)],
                              std::span(expected_q).subspan(static_cast<size_t>(r * 96), 96), 2e-6f),
                1);
      for (int64_t i = 96; i < 104; ++i) {
        const auto at = static_cast<size_t>(r * 104 + i);
        EXPECT_EQ(got_q[at], static_cast<uint16_t>(poison >> (at % 2 * 16))) << "a column beside the outputs";
      }
    }
    const auto got_b = from_gpu<float>(outputs[1].data(), b.values());
    for (size_t i = 0; i < got_b.size(); ++i) EXPECT_NEAR(got_b[i], expected_b[i], 4e-6);
    const auto got_heads = from_gpu<uint16_t>(outputs[2].data(), heads.values());
    EXPECT_LE(bf16_distance(got_heads.data(), expected_heads, 2e-6f), 1);
  }
}

TEST(LinearGpu, NoRowsWriteNothing) {
  const Product p(5, 24, 64, 64, 8);
  for (int32_t tile = 0; tile < linear_tile_count; ++tile) {
    EXPECT_TRUE(run_tile(p, tile, 0).empty());
  }
}

TEST(LinearGpu, RefusesWhatItCannotCopy) {
  const Product p(6, 8, 64, 64, 1);
  const auto y = poisoned(8), count = count_of(1);
  const auto run = [&](const auto& change) {
    CudaLinearCall call = p.call(y, true);
    change(call);
    linear_on_gpu().run(std::span(&call, 1), count.as<int32_t>(), 1);
  };
  EXPECT_NO_THROW(run([](CudaLinearCall&) {}));
  EXPECT_THROW(run([](CudaLinearCall& c) { c.matrix.in_features = c.matrix.leaf_columns = 60; }), Error);
  EXPECT_THROW(run([](CudaLinearCall& c) { c.matrix.leaf_columns = 72; }), Error);
  EXPECT_THROW(run([](CudaLinearCall& c) { c.matrix.row_stride = 56; }), Error);
  EXPECT_THROW(run([](CudaLinearCall& c) { c.x += 1; }), Error);
  EXPECT_THROW(run([](CudaLinearCall& c) { c.x_stride = 65; }), Error);
}

TEST(LinearGpu, CostCountsOperandsOnce) {
  const Product p(6, 8, 64, 64, 3);
  const auto y = poisoned(24);
  const CudaLinearCall calls[] = {p.call(y, true), p.call(y, false)};
  const device::KernelCost cost = CudaLinear::cost(calls, 3);
  EXPECT_EQ(cost.operations, 2 * 2 * 3 * 8 * 64);
  EXPECT_EQ(cost.bytes, 2 * (8 * 64 * 2 + 3 * 64 * 2) + 3 * 8 * (4 + 2));
}

}  // namespace
}  // namespace tandem::ops::linear_gpu_test
