// Projections: right, and with bits that do not depend on rows, threads or the other calls of the region.
#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/test_random.h"

namespace tandem::ops::linear_test {
namespace {

using test::Random;
using test::same_bits;

constexpr WeightFormat formats[] = {WeightFormat::f32, WeightFormat::bf16, WeightFormat::fp8_block};

TEST(Linear, AgainstDouble) {
  device::Threads threads(3);
  Random random(1);
  for (const WeightFormat format : formats) {
    for (const auto& [out, in, leaf] : std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {203, 96, 48}, {70, 1337, 700}}) {
      const auto w = test::random_matrix(random, format, out, in, {.leaf_columns = leaf, .misaligned = 1});
      for (const int64_t rows : {1, 67}) {
        const std::vector<float> x = random.normals(rows * in);
        std::vector<float> y = test::unwritten(rows * out);
        linear(threads, w.view, x.data(), y.data(), rows);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t o = 0; o < out; ++o) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < in; ++k) {
              const double term = w.at(o, k) * x[static_cast<size_t>(r * in + k)];
              sum += term;
              size += std::abs(term);
            }
            ASSERT_NEAR(y[static_cast<size_t>(r * out + o)], sum, 3e-7 * size)
                << out << "x" << in << " " << r << " " << o;
          }
        }
      }
    }
  }
}

TEST(Linear, BitsDoNotDependOnRowsAndThreads) {
  device::Threads one(1), three(3);
  for (const WeightFormat format : formats) {
    Random random(2);
    const int64_t out = 83, in = 300, most = 130;
    const auto w = test::random_matrix(random, format, out, in, {.leaf_columns = 150, .block_row = 60});
    const std::vector<float> x = random.normals(most * in);
    std::vector<float> expected;
    for (int64_t r = 0; r < most; ++r) {
      std::vector<float> y = test::unwritten(out);
      linear(one, w.view, x.data() + r * in, y.data(), 1);
      expected.insert(expected.end(), y.begin(), y.end());
    }
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 63, 64, 65, 66, 67, 100, 127, 128, 129, 130}) {
      for (device::Threads* threads : {&one, &three}) {
        std::vector<float> y = test::unwritten(rows * out);
        linear(*threads, w.view, x.data(), y.data(), rows);
        ASSERT_TRUE(same_bits(y.data(), expected.data(), rows * out)) << rows << " rows, " << threads->count();
      }
    }
  }
}

TEST(Linear, BitsDoNotDependOnTheOtherCalls) {
  device::Threads one(1), three(3);
  Random random(3);
  constexpr int64_t calls = 16;
  for (const int64_t rows : {1, 5, 70}) {
    const int64_t in = 64, x_stride = in + 7;
    const std::vector<float> x = random.normals(rows * x_stride);
    std::vector<test::StoredMatrix> weights;
    std::vector<std::vector<float>> together, alone;
    for (int64_t i = 0; i < calls; ++i) {
      weights.push_back(test::random_matrix(random, formats[i % 3], 1 + random.below(150), in - i));
      const int64_t stride = weights.back().view.out_features + i % 4;
      together.emplace_back(static_cast<size_t>(rows * stride), 77.0f);
      alone.push_back(together.back());
    }
    std::vector<LinearCall> list;
    for (size_t i = 0; i < calls; ++i) {
      const int64_t stride = weights[i].view.out_features + static_cast<int64_t>(i) % 4;
      list.push_back({&weights[i].view, x.data() + i % 3, x_stride, together[i].data(), stride});
      LinearCall single = list.back();
      single.y = alone[i].data();
      linear(one, std::span(&single, 1), rows);
    }
    linear(three, list, rows);
    for (size_t i = 0; i < calls; ++i) EXPECT_TRUE(same_bits(together[i], alone[i])) << rows << " rows, call " << i;
  }
}

TEST(Linear, NoRowsWritesNothing) {
  device::Threads threads(2);
  Random random(4);
  const auto w = test::random_matrix(random, WeightFormat::bf16, 8, 8);
  float x[8] = {}, y[8] = {5.0f};
  linear(threads, w.view, x, y, 0);
  EXPECT_EQ(y[0], 5.0f);
}

TEST(Linear, TooManyCallsIsAnError) {
  device::Threads threads(1);
  Random random(5);
  const auto w = test::random_matrix(random, WeightFormat::bf16, 2, 2);
  float x[2] = {}, y[2] = {};
  const std::vector<LinearCall> calls(17, LinearCall{&w.view, x, 2, y, 2});
  EXPECT_THROW(linear(threads, calls, 1), Error);
}

}  // namespace
}  // namespace tandem::ops::linear_test
