// The order of every sum, written out with plain code from the rule in kernels.h and compared bit for bit: this order
// is what makes a row's result independent of who shares the step (design: one arithmetic a row).
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "ops/simd/kernels.h"
#include "ops/test_random.h"

namespace tandem::ops::sums_test {
namespace {

using test::Random;
using test::same_bits;

float tree(float (&lanes)[16]) {
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// The lane of value k of a slice: fp32 rows go around the lanes one by one; BF16 and FP8 weights in the order of Pair
// (vec16.h), runs of four values in groups of 32.
enum class Lanes { natural, paired };
int64_t lane(Lanes order, int64_t k) { return order == Lanes::natural ? k % 16 : k / 8 % 4 * 4 + k % 4; }

float slice_sum(Lanes order, const float* w, const float* x, int64_t n) {
  float lanes[16] = {};
  for (int64_t k = 0; k < n; ++k) {
    float& sum = lanes[lane(order, k)];
    sum = std::fma(w[k], x[k], sum);
  }
  return tree(lanes);
}

// Columns [begin, end): slices end at multiples of 1024 counted from column 0 of the matrix.
float leaf_sum(Lanes order, const float* w, const float* x, int64_t begin, int64_t end) {
  float total = 0.0f;
  for (int64_t k = begin; k < end;) {
    const int64_t stop = std::min(end, k / 1024 * 1024 + 1024);
    const float part = slice_sum(order, w + k, x + k, stop - k);
    total = k == begin ? part : total + part;
    k = stop;
  }
  return total;
}

float row_sum(WeightFormat format, const float* w, const float* x, int64_t k, int64_t cut) {
  const Lanes order = format == WeightFormat::f32 ? Lanes::natural : Lanes::paired;
  if (cut == 0 || cut == k) return leaf_sum(order, w, x, 0, k);
  return leaf_sum(order, w, x, 0, cut) + leaf_sum(order, w, x, cut, k);
}

struct Case {
  int64_t outputs, k, cut, rows, block_row, misaligned;
};
// In the test's name, in place of its bytes.
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.outputs << "x" << c.k << " cut " << c.cut << " rows " << c.rows << " from " << c.block_row;
}
constexpr Case cases[] = {
    {4, 16, 16, 1, 0, 0},        {1, 1, 1, 1, 0, 1},          {7, 33, 17, 3, 5, 1},       {5, 129, 128, 2, 127, 3},
    {9, 1023, 1023, 7, 0, 1},    {6, 1025, 511, 1, 100, 0},   {5, 1024, 512, 13, 0, 2},   {4, 2047, 1024, 6, 64, 1},
    {3, 2049, 1031, 20, 130, 3}, {130, 257, 256, 2, 100, 1},  {5, 3000, 1500, 5, 1, 1},   {3, 2999, 2050, 64, 0, 0},
    {2, 3000, 0, 1, 0, 0},       {4, 2600, 1, 9, 0, 1},       {4, 2600, 2599, 1, 255, 0}, {11, 777, 400, 65 - 1, 3, 1},
    {67, 2100, 1024, 8, 0, 1},   {66, 1090, 1090, 12, 40, 3}, {65, 512, 256, 4, 0, 1},    {131, 256, 256, 8, 9, 0},
    {8, 1024, 1024, 11, 0, 1},   {70, 2500, 1500, 10, 0, 2},
};

class MatmulOrder : public ::testing::TestWithParam<std::tuple<WeightFormat, Case>> {};

TEST_P(MatmulOrder, IsTheWrittenRule) {
  const auto& [format, c] = GetParam();
  Random random(static_cast<uint64_t>(c.k * 1000 + c.cut));
  const auto w = test::random_matrix(random, format, c.outputs, c.k,
                                     {.leaf_columns = c.cut, .block_row = c.block_row, .misaligned = c.misaligned});
  const std::vector<float> x = random.normals(c.rows * (c.k + 3));
  const int64_t y_stride = c.outputs + 2;
  std::vector<float> y(static_cast<size_t>(c.rows * y_stride), 99.0f), expected = y;
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t o = 0; o < c.outputs; ++o) {
      expected[static_cast<size_t>(r * y_stride + o)] =
          row_sum(format, w.values.data() + o * c.k, x.data() + r * (c.k + 3), c.k, c.cut);
    }
  }
  kernels().matmul({&w.view, 0, c.outputs, 0, c.k, x.data(), c.k + 3, c.rows, y.data(), y_stride});
  EXPECT_TRUE(same_bits(y, expected));

  // Some outputs only: others are left alone, and y is indexed by the absolute output.
  if (c.outputs >= 3) {
    std::vector<float> part(y.size(), 99.0f);
    kernels().matmul({&w.view, 1, c.outputs - 1, 0, c.k, x.data(), c.k + 3, c.rows, part.data(), y_stride});
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t o = 0; o < y_stride; ++o) {
        const auto at = static_cast<size_t>(r * y_stride + o);
        ASSERT_TRUE(same_bits(part[at], o >= 1 && o < c.outputs - 1 ? y[at] : 99.0f)) << r << " " << o;
      }
    }
  }

  // Two ranks: one leaf each, then one addition.
  if (c.cut == 0 || c.cut == c.k) return;
  std::vector<float> leaf0(y.size(), 99.0f), leaf1(y.size(), 99.0f);
  kernels().matmul({&w.view, 0, c.outputs, 0, c.cut, x.data(), c.k + 3, c.rows, leaf0.data(), y_stride});
  kernels().matmul({&w.view, 0, c.outputs, c.cut, c.k, x.data(), c.k + 3, c.rows, leaf1.data(), y_stride});
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t o = 0; o < c.outputs; ++o) {
      const auto at = static_cast<size_t>(r * y_stride + o);
      ASSERT_TRUE(same_bits(leaf0[at] + leaf1[at], y[at])) << r << " " << o;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, MatmulOrder,
                         ::testing::Combine(::testing::Values(WeightFormat::f32, WeightFormat::bf16,
                                                              WeightFormat::fp8_block),
                                            ::testing::ValuesIn(cases)));

// A row's bits do not depend on the rows beside it or its place among them.
TEST(Sums, MatmulRowsAreIndependent) {
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::fp8_block}) {
    Random random(8);
    const int64_t k = 1100, outputs = 9;
    const auto w = test::random_matrix(random, format, outputs, k, {.leaf_columns = 600});
    const std::vector<float> x = random.normals(max_tile_rows * k);
    std::vector<float> all(max_tile_rows * outputs);
    kernels().matmul({&w.view, 0, outputs, 0, k, x.data(), k, max_tile_rows, all.data(), outputs});
    for (int64_t rows = 1; rows < max_tile_rows; rows += rows < 14 ? 1 : 17) {
      const int64_t first = random.below(max_tile_rows - rows);
      std::vector<float> some(static_cast<size_t>(rows * outputs));
      kernels().matmul({&w.view, 0, outputs, 0, k, x.data() + first * k, k, rows, some.data(), outputs});
      EXPECT_TRUE(same_bits(some.data(), all.data() + first * outputs, rows * outputs)) << rows;
    }
  }
}

TEST(Sums, DotFollowsTheRule) {
  Random random(9);
  for (const int64_t n : {1, 15, 16, 17, 100, 1023, 1024, 1025, 2048, 3000}) {
    const std::vector<float> a = random.normals(n), b = random.normals(n);
    EXPECT_TRUE(same_bits(kernels().dot(a.data(), b.data(), n), leaf_sum(Lanes::natural, a.data(), b.data(), 0, n)))
        << n;
  }
}

TEST(Sums, SumIsSixteenLanesAndTheTree) {
  Random random(10);
  for (const int64_t n : {1, 15, 16, 17, 100, 1024, 1025, 2051}) {
    const std::vector<float> a = random.normals(n);
    float lanes[16] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i % 16] += a[static_cast<size_t>(i)];
    EXPECT_TRUE(same_bits(kernels().sum(a.data(), n), tree(lanes))) << n;
  }
}

TEST(Sums, DotRowsFollowsTheRule) {
  Random random(11);
  for (const auto& [count, k, rows] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {1, 1, 1}, {5, 72, 3}, {4, 512, 8}, {9, 1025, 7}, {3, 2048, 1}, {2, 2500, 13}}) {
    std::vector<std::vector<float>> list;
    std::vector<const float*> pointers;
    for (int64_t i = 0; i < count; ++i) list.push_back(random.normals(k));
    for (int64_t i = 0; i < count; ++i) pointers.push_back(list[static_cast<size_t>(count - 1 - i)].data());
    const std::vector<float> x = random.normals(rows * (k + 1));
    std::vector<float> y(static_cast<size_t>(rows * (count + 1)), 99.0f);
    kernels().dot_rows({pointers.data(), count, k, x.data(), k + 1, rows, y.data(), count + 1});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i <= count; ++i) {
        const float expected =
            i == count ? 99.0f
                       : leaf_sum(Lanes::natural, pointers[static_cast<size_t>(i)], x.data() + r * (k + 1), 0, k);
        ASSERT_TRUE(same_bits(y[static_cast<size_t>(r * (count + 1) + i)], expected)) << count << " " << k << " " << r;
      }
    }
  }
}

// One fma a term, ascending, in all three ways to name the rows.
TEST(Sums, CombineRowsFollowsTheRule) {
  for (const int64_t dims : {1, 15, 16, 33, 64, 65, 127, 200}) {
    for (const int64_t rows : {1, 2, 4, 5, 9}) {
      for (int form = 0; form < 6; ++form) {
        Random random(static_cast<uint64_t>(dims * 100 + rows * 10 + form));
        const int64_t count = random.below(20);
        const bool bf16 = form % 3 == 2, with_init = form >= 3;
        const auto list = test::random_matrix(random, bf16 ? WeightFormat::bf16 : WeightFormat::f32, count + 1, dims);
        std::vector<const float*> pointers;
        for (int64_t j = 0; j < count; ++j) pointers.push_back(list.values.data() + j * dims);
        const std::vector<float> x = random.normals(rows * (count + 1)), scale = random.normals(rows);
        const std::vector<float> init = random.normals(rows * dims);
        std::vector<float> y(static_cast<size_t>(rows * dims)), expected = y;
        CombineRows c;
        if (form % 3 == 0) {
          pointers.push_back(nullptr);  // so that data() is a pointer even of an empty list
          c.pointers = pointers.data();
        } else {
          c.base = list.view.data;
          c.base_stride = dims * (bf16 ? 2 : 4);
          c.bf16 = bf16;
        }
        c.count = count;
        c.dims = dims;
        c.x = x.data();
        c.x_stride = 1;  // transposed factors
        c.x_step = rows;
        c.rows = rows;
        if (with_init) {
          c.init = init.data();
          c.init_stride = dims;
          if (form != 4) c.init_scale = scale.data();
        }
        c.out = y.data();
        c.out_stride = dims;
        kernels().combine_rows(c);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t d = 0; d < dims; ++d) {
            float sum = with_init ? init[static_cast<size_t>(r * dims + d)] : 0.0f;
            if (with_init && form != 4) sum *= scale[static_cast<size_t>(r)];
            for (int64_t j = 0; j < count; ++j)
              sum = std::fma(x[static_cast<size_t>(r + j * rows)], list.values[static_cast<size_t>(j * dims + d)], sum);
            expected[static_cast<size_t>(r * dims + d)] = sum;
          }
        }
        ASSERT_TRUE(same_bits(y, expected)) << dims << " " << rows << " form " << form;
      }
    }
  }
}

// a_j = Σ_d k_t k_j exp(G_t − G_j) and the same with q: against double.
TEST(Sums, KdaPairsAgainstDouble) {
  Random random(12);
  for (const int64_t dim : {20, 32, 128, 256}) {
    const int64_t count = 15, stride = dim + 5;
    const std::vector<float> kt = random.normals(dim), qt = random.normals(dim), k = random.normals(count * stride);
    const std::vector<float> gt = random.uniforms(dim, -60.0f, -30.0f);
    std::vector<float> g = random.uniforms(count * stride, -30.0f, 0.0f);
    std::vector<float> a(count), b(count);
    kernels().kda_pairs(kt.data(), qt.data(), gt.data(), k.data(), g.data(), stride, count, dim, a.data(), b.data());
    std::vector<double> expected_a, expected_b;
    for (int64_t j = 0; j < count; ++j) {
      double sum_a = 0, sum_b = 0;
      for (size_t d = 0; d < static_cast<size_t>(dim); ++d) {
        const auto at = static_cast<size_t>(j * stride) + d;
        const double faded = k[at] * std::exp(static_cast<double>(gt[d]) - g[at]);
        sum_a += kt[d] * faded;
        sum_b += qt[d] * faded;
      }
      expected_a.push_back(sum_a);
      expected_b.push_back(sum_b);
    }
    EXPECT_TRUE(test::close(a, expected_a, 4e-6)) << dim;
    EXPECT_TRUE(test::close(b, expected_b, 4e-6)) << dim;
  }
}

}  // namespace
}  // namespace tandem::ops::sums_test
