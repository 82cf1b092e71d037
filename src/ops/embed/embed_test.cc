// Token embedding: exact copies of stored rows.
#include "ops/embed/embed.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "ops/test_random.h"

namespace tandem::ops::embed_test {
namespace {

using test::Random;

TEST(Embed, CopiesTheRowIntoEveryStream) {
  Random random(1);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f32}) {
    for (const int64_t copies : {1, 4}) {
      const int64_t hidden = 21, stride = copies * hidden + 3;
      const auto table = test::random_matrix(random, format, 11, hidden, {.misaligned = 1});
      const std::vector<int32_t> tokens = {0, 10, 3, 3};
      std::vector<float> out(static_cast<size_t>(4 * stride), 99.0f), expected = out;
      for (int64_t r = 0; r < 4; ++r) {
        for (int64_t i = 0; i < copies * hidden; ++i) {
          expected[static_cast<size_t>(r * stride + i)] =
              table.values[static_cast<size_t>(tokens[static_cast<size_t>(r)] * hidden + i % hidden)];
        }
      }
      embed(table.view, tokens, copies, out.data(), stride);
      EXPECT_TRUE(test::same_bits(out, expected));
    }
  }
}

TEST(Embed, ARankCopiesItsOwnRows) {
  Random random(3);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f32}) {
    const auto table = test::random_matrix(random, format, 11, 7, {.misaligned = 1});
    const std::vector<int32_t> tokens = {0, 10, 5, 6};
    std::vector<float> whole(28), parts(28, 99.0f);
    embed(table.view, tokens, 1, whole.data(), 7);
    embed_own(rows_of(table.view, 0, 6), 0, tokens, parts.data());
    EXPECT_TRUE(test::same_bits(parts.data(), whole.data(), 7));
    EXPECT_EQ(parts[7], 99.0f) << "row 10 is the other rank's";
    EXPECT_EQ(parts[21], 99.0f);
    embed_own(rows_of(table.view, 6, 5), 6, tokens, parts.data());
    EXPECT_TRUE(test::same_bits(parts, whole));
  }
}

TEST(Embed, BadTokensAndFormatsAreErrors) {
  Random random(2);
  std::vector<float> out(8);
  const auto table = test::random_matrix(random, WeightFormat::bf16, 5, 8);
  for (const int32_t token : {-1, 5, 1 << 30}) {
    const std::vector<int32_t> tokens = {token};
    EXPECT_THROW(embed(table.view, tokens, 1, out.data(), 8), Error) << token;
  }
  const auto fp8 = test::random_matrix(random, WeightFormat::fp8_block, 5, 8);
  const std::vector<int32_t> tokens = {1};
  EXPECT_THROW(embed(fp8.view, tokens, 1, out.data(), 8), Error);
}

}  // namespace
}  // namespace tandem::ops::embed_test
