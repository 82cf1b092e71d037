// The gated output norm of KDA against spec/model.md 3.7 in double precision.
#include "ops/kda_conv/kda_output.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "ops/test_random.h"

namespace tandem::ops::kda_output_test {
namespace {

using test::Random;

std::vector<float> run(device::Threads& threads, int64_t heads, int64_t dim, int64_t rows, std::vector<float> o,
                       std::vector<float> gate, const std::vector<float>& weight) {
  KdaOutput a;
  a.heads = heads;
  a.dim = dim;
  a.rows = rows;
  a.o = o.data();
  a.gate = gate.data();
  a.weight = weight.data();
  kda_output(threads, a);
  return o;
}

TEST(KdaOutput, AgainstDouble) {
  device::Threads threads(3);
  Random random(1);
  for (const auto& [heads, dim, rows] : {std::array<int64_t, 3>{1, 20, 1}, {3, 32, 17}, {64, 128, 5}, {2, 128, 70}}) {
    for (const float size : {1.0f, 1e-3f, 1e-5f}) {  // below about 3e-3 the eps of 1e-5 decides
      const std::vector<float> o = random.normals(rows * heads * dim, size);
      const std::vector<float> gate = random.normals(rows * heads * dim, 4.0f), weight = random.normals(dim);
      std::vector<double> expected;
      for (size_t i = 0; i < o.size(); i += static_cast<size_t>(dim)) {
        double mean = 0;
        for (size_t d = 0; d < static_cast<size_t>(dim); ++d)
          mean += static_cast<double>(o[i + d]) * o[i + d] / test::real(dim);
        for (size_t d = 0; d < static_cast<size_t>(dim); ++d)
          expected.push_back(o[i + d] / std::sqrt(mean + 1e-5) * weight[d] * test::sigmoid(gate[i + d]));
      }
      const std::vector<float> found = run(threads, heads, dim, rows, o, gate, weight);
      EXPECT_TRUE(test::close(found, expected, 2e-6)) << heads << " " << dim << " " << size;
    }
  }
}

TEST(KdaOutput, BitsDoNotDependOnRowsAndThreads) {
  device::Threads one(1), three(3);
  Random random(2);
  const int64_t heads = 2, dim = 24, rows = 300, width = heads * dim;
  const std::vector<float> o = random.normals(rows * width), gate = random.normals(rows * width);
  const std::vector<float> weight = random.normals(dim);
  const std::vector<float> all = run(three, heads, dim, rows, o, gate, weight);
  std::vector<float> single;
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<float> row = run(one, heads, dim, 1, {o.begin() + r * width, o.begin() + (r + 1) * width},
                                       {gate.begin() + r * width, gate.begin() + (r + 1) * width}, weight);
    single.insert(single.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(test::same_bits(single, all));
}

}  // namespace
}  // namespace tandem::ops::kda_output_test
