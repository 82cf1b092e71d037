// kv_b_proj on both sides of latent attention, against spec/model.md 4.3 in double precision.
#include "ops/attend/mla_absorb.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "ops/test_random.h"

namespace tandem::ops::mla_absorb_test {
namespace {

using test::Random;

struct Case {
  int64_t heads, key_dim, value_dim, rank, rows;
};
constexpr Case cases[] = {{1, 1, 1, 1, 1}, {3, 40, 24, 72, 5}, {2, 256, 256, 512, 2}, {5, 33, 65, 130, 67}};

TEST(MlaAbsorb, QueryAgainstDouble) {
  device::Threads threads(3);
  Random random(1);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f32}) {
    for (const Case& c : cases) {
      const auto kv_b = test::random_matrix(random, format, c.heads * (c.key_dim + c.value_dim), c.rank);
      const std::vector<float> q = random.normals(c.rows * c.heads * c.key_dim);
      std::vector<float> out = test::unwritten(c.rows * c.heads * c.rank);
      mla_absorb_query(threads, {&kv_b.view, c.heads, c.key_dim, c.value_dim, c.rows}, q.data(), out.data());
      std::vector<double> expected;
      for (int64_t i = 0; i < c.rows * c.heads; ++i) {
        const int64_t first = i % c.heads * (c.key_dim + c.value_dim);
        for (int64_t r = 0; r < c.rank; ++r) {
          double sum = 0;
          for (int64_t d = 0; d < c.key_dim; ++d)
            sum += kv_b.at(first + d, r) * q[static_cast<size_t>(i * c.key_dim + d)];
          expected.push_back(sum);
        }
      }
      EXPECT_TRUE(test::close(out, expected, 1e-6)) << c.heads << " " << c.key_dim;
    }
  }
}

TEST(MlaAbsorb, ValueAgainstDouble) {
  device::Threads threads(3);
  Random random(2);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f32}) {
    for (const Case& c : cases) {
      const auto kv_b = test::random_matrix(random, format, c.heads * (c.key_dim + c.value_dim), c.rank);
      const std::vector<float> l = random.normals(c.rows * c.heads * c.rank);
      std::vector<float> out = test::unwritten(c.rows * c.heads * c.value_dim);
      mla_expand_value(threads, {&kv_b.view, c.heads, c.key_dim, c.value_dim, c.rows}, l.data(), out.data());
      std::vector<double> expected;
      for (int64_t i = 0; i < c.rows * c.heads; ++i) {
        const int64_t first = i % c.heads * (c.key_dim + c.value_dim) + c.key_dim;
        for (int64_t d = 0; d < c.value_dim; ++d) {
          double sum = 0;
          for (int64_t r = 0; r < c.rank; ++r) sum += kv_b.at(first + d, r) * l[static_cast<size_t>(i * c.rank + r)];
          expected.push_back(sum);
        }
      }
      EXPECT_TRUE(test::close(out, expected, 1e-6)) << c.heads << " " << c.key_dim;
    }
  }
}

TEST(MlaAbsorb, BitsDoNotDependOnRowsAndThreads) {
  device::Threads one(1), three(3);
  Random random(3);
  const Case c = {3, 40, 24, 200, 70};
  const auto kv_b = test::random_matrix(random, WeightFormat::bf16, c.heads * (c.key_dim + c.value_dim), c.rank);
  const std::vector<float> q = random.normals(c.rows * c.heads * c.key_dim),
                           l = random.normals(c.rows * c.heads * c.rank);
  const MlaAbsorb all{&kv_b.view, c.heads, c.key_dim, c.value_dim, c.rows},
      single{&kv_b.view, c.heads, c.key_dim, c.value_dim, 1};
  std::vector<float> absorbed = test::unwritten(c.rows * c.heads * c.rank), one_absorbed = absorbed;
  std::vector<float> values = test::unwritten(c.rows * c.heads * c.value_dim), one_values = values;
  mla_absorb_query(three, all, q.data(), absorbed.data());
  mla_expand_value(three, all, l.data(), values.data());
  for (int64_t r = 0; r < c.rows; ++r) {
    mla_absorb_query(one, single, q.data() + r * c.heads * c.key_dim, one_absorbed.data() + r * c.heads * c.rank);
    mla_expand_value(one, single, l.data() + r * c.heads * c.rank, one_values.data() + r * c.heads * c.value_dim);
  }
  EXPECT_TRUE(test::same_bits(one_absorbed, absorbed));
  EXPECT_TRUE(test::same_bits(one_values, values));
}

TEST(MlaAbsorb, StoredWeightsMayBeUnaligned) {
  device::Threads threads(1);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f32}) {
    std::vector<float> out[2];
    for (const int64_t misaligned : {0, 1}) {
      Random random(4);
      const auto kv_b = test::random_matrix(random, format, 2 * (8 + 8), 37, {.misaligned = misaligned});
      const std::vector<float> q = random.normals(3 * 2 * 8);
      std::vector<float>& found = out[misaligned];
      found = test::unwritten(3 * 2 * 37);
      mla_absorb_query(threads, {&kv_b.view, 2, 8, 8, 3}, q.data(), found.data());
    }
    EXPECT_TRUE(test::same_bits(out[0], out[1]));
  }
}

TEST(MlaAbsorb, Fp8IsAnError) {
  device::Threads threads(1);
  Random random(5);
  const auto kv_b = test::random_matrix(random, WeightFormat::fp8_block, 16, 8);
  const std::vector<float> q(8, 0.0f);
  std::vector<float> out(8);
  EXPECT_THROW(mla_absorb_query(threads, {&kv_b.view, 1, 8, 8, 1}, q.data(), out.data()), Error);
}

}  // namespace
}  // namespace tandem::ops::mla_absorb_test
