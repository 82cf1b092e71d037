// TR3's shared vectors on matrices whose profiles are known.
#include "eval/shared_vectors.h"

#include <cmath>
#include <random>

namespace tandem::eval::shared_vectors_test {
namespace {

// [out, in] of normal values, each times its row's and its column's factor.
std::vector<float> matrix(int64_t out, int64_t in, uint32_t seed, const std::function<double(int64_t)>& of_out,
                          const std::function<double(int64_t)>& of_in) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, 1);
  std::vector<float> values;
  for (int64_t o = 0; o < out; ++o)
    for (int64_t i = 0; i < in; ++i) values.push_back(static_cast<float>(normal(generator) * of_out(o) * of_in(i)));
  return values;
}

double profile(int64_t i) { return i % 3 == 0 ? 4.0 : 0.5; }
double flat(int64_t) { return 1; }

TEST(SharedVectors, InputsFollowTheCommonProfile) {
  std::vector<SharingMatrix> matrices;
  for (uint32_t e = 0; e < 4; ++e)
    matrices.push_back({[e] {
                          return matrix(
                              256, 128, e, [](int64_t o) { return 1 + 0.5 * static_cast<double>(o % 2); }, profile);
                        },
                        256, 128, 1.0 + e});
  device::Threads threads(2), one(1);
  const std::vector<float> suh = shared_input_vector(matrices, 7, threads);
  ASSERT_EQ(suh.size(), 128u);
  int negative = 0;
  for (int64_t i = 0; i < 128; ++i) {
    // Outputs are taken relative to their mean of 1.25, which is about what is left of the values of RMS 1.25·profile.
    EXPECT_NEAR(std::abs(suh[static_cast<size_t>(i)]), 1.25 * profile(i) / 1.24371088, 0.15 * profile(i)) << i;
    negative += suh[static_cast<size_t>(i)] < 0 ? 1 : 0;
  }
  EXPECT_GT(negative, 32);
  EXPECT_LT(negative, 96);
  EXPECT_EQ(shared_input_vector(matrices, 7, one), suh);
  EXPECT_NE(shared_input_vector(matrices, 8, one), suh) << "other signs";
}

// exp(Σ mass·ln rms / Σ mass): a matrix without mass has no say, unless none has any.
TEST(SharedVectors, CountByMass) {
  const auto of = [](double factor) {
    return SharingMatrix{[factor] { return matrix(128, 128, 3, flat, [factor](int64_t) { return factor; }); }, 128, 128,
                         0};
  };
  std::vector<SharingMatrix> matrices = {of(1), of(16)};
  device::Threads threads(1);
  const auto size = [&] { return std::abs(shared_input_vector(matrices, 1, threads)[5]); };
  matrices[0].mass = 1;
  const float small = size();
  matrices[1].mass = 1;
  EXPECT_NEAR(size() / small, 4, 0.01);
  matrices[1].mass = 3;
  EXPECT_NEAR(size() / small, 8, 0.01);
  matrices[0].mass = matrices[1].mass = 0;
  EXPECT_NEAR(size() / small, 4, 0.01);
}

TEST(SharedVectors, OutputsHaveMeanOneAndArePadded) {
  const std::vector<SharingMatrix> matrices = {{[] { return matrix(200, 96, 9, profile, flat); }, 200, 96, 2.0}};
  device::Threads threads(1);
  const std::vector<float> svh = shared_output_vector(matrices, 3, threads);
  ASSERT_EQ(svh.size(), 256u);
  double sum = 0;
  for (size_t o = 0; o < 200; ++o) sum += std::abs(svh[o]);
  EXPECT_NEAR(sum / 200, 1, 1e-5);
  EXPECT_NEAR(std::abs(svh[0] / svh[1]), 8, 1.5);
  for (size_t o = 200; o < 256; ++o) EXPECT_NEAR(std::abs(svh[o]), 1, 1e-5);
  // A dead output keeps a scale that can be divided by.
  const std::vector<SharingMatrix> dead = {{[] { return std::vector<float>(128 * 128, 0.0f); }, 128, 128, 1.0}};
  for (const float value : shared_output_vector(dead, 3, threads)) EXPECT_NEAR(std::abs(value), 1, 1e-5);
}

}  // namespace
}  // namespace tandem::eval::shared_vectors_test
