// Parts of a matrix: every cut gives the bits of the whole, so that ranks can hold one part each.
#include "ops/linear/matrix.h"

#include "device/threads.h"
#include "ops/linear/linear.h"
#include "ops/test_random.h"

namespace tandem::ops::matrix_test {
namespace {

using test::Random;

constexpr WeightFormat formats[] = {WeightFormat::f32, WeightFormat::bf16, WeightFormat::fp8_block};

std::vector<float> product(device::Threads& threads, const Matrix& m, const float* x, int64_t x_stride, int64_t rows) {
  std::vector<float> y = test::unwritten(rows * m.out_features);
  const LinearCall call{&m, x, x_stride, y.data(), m.out_features};
  linear(threads, std::span(&call, 1), rows);
  return y;
}

TEST(Matrix, RowsOfAMatrixAreItsOutputs) {
  device::Threads threads(2);
  Random random(1);
  for (const WeightFormat format : formats) {
    const test::StoredMatrix m =
        test::random_matrix(random, format, 300, 170, {.leaf_columns = 128, .block_row = 77, .misaligned = 1});
    const std::vector<float> x = random.normals(7 * 170);
    const std::vector<float> whole = product(threads, m.view, x.data(), 170, 7);
    for (const auto& [first, count] : {std::pair{0, 300}, {0, 13}, {13, 129}, {51, 1}, {130, 170}, {299, 1}}) {
      const std::vector<float> part = product(threads, rows_of(m.view, first, count), x.data(), 170, 7);
      for (int64_t r = 0; r < 7; ++r) {
        EXPECT_TRUE(test::same_bits(part.data() + r * count, whole.data() + r * 300 + first, count))
            << static_cast<int>(format) << " rows from " << first;
      }
    }
  }
}

// Leaf 0 + leaf 1 of the two halves = the whole, for borders inside slices, blocks and groups of lanes.
TEST(Matrix, ColumnsOfAMatrixAreItsLeaves) {
  device::Threads threads(2);
  Random random(2);
  for (const WeightFormat format : formats) {
    for (const int64_t border : {1, 24, 48, 128, 1000, 1024, 1100, 2100}) {
      for (const int64_t rows : {1, 3, 9}) {
        const int64_t in = 2300, out = 37;
        const test::StoredMatrix m =
            test::random_matrix(random, format, out, in, {.leaf_columns = border, .block_row = 100});
        const std::vector<float> x = random.normals(rows * in);
        const std::vector<float> whole = product(threads, m.view, x.data(), in, rows);
        // Each rank holds its own columns of x packed.
        std::vector<float> sum;
        for (const auto& [first, count] : {std::pair{int64_t{0}, border}, {border, in - border}}) {
          std::vector<float> own;
          for (int64_t r = 0; r < rows; ++r)
            own.insert(own.end(), x.begin() + r * in + first, x.begin() + r * in + first + count);
          const Matrix part = columns_of(m.view, first, count);
          EXPECT_EQ(part.in_features, count);
          const std::vector<float> leaf = product(threads, part, own.data(), count, rows);
          if (first == 0) {
            sum = leaf;
          } else {
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += leaf[i];
          }
        }
        EXPECT_TRUE(test::same_bits(sum, whole)) << static_cast<int>(format) << " " << border << " " << rows;
      }
    }
  }
}

TEST(Matrix, PartsOfParts) {
  device::Threads threads(1);
  Random random(3);
  for (const WeightFormat format : formats) {
    const test::StoredMatrix m = test::random_matrix(random, format, 400, 400);
    const Matrix once = columns_of(rows_of(m.view, 130, 100), 200, 150);
    const Matrix twice = rows_of(columns_of(rows_of(columns_of(m.view, 100, 280), 100, 250), 100, 150), 30, 100);
    const std::vector<float> x = random.normals(150);
    EXPECT_TRUE(test::same_bits(product(threads, once, x.data(), 150, 1), product(threads, twice, x.data(), 150, 1)));
    for (int64_t o = 0; o < 100; ++o) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < 150; ++k) {
        sum += m.at(130 + o, 200 + k) * x[static_cast<size_t>(k)];
        size += std::abs(m.at(130 + o, 200 + k) * x[static_cast<size_t>(k)]);
      }
      EXPECT_NEAR(product(threads, once, x.data(), 150, 1)[static_cast<size_t>(o)], sum, 1e-6 * size);
    }
  }
}

}  // namespace
}  // namespace tandem::ops::matrix_test
