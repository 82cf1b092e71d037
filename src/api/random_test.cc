// Ids and seeds.
#include "api/random.h"

#include <set>

namespace tandem::api::random_test {
namespace {

TEST(Random, HexHasTwoDigitsAByteAndDiffers) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string hex = random_hex(16);
    EXPECT_EQ(hex.size(), 32u);
    EXPECT_EQ(hex.find_first_not_of("0123456789abcdef"), std::string::npos);
    seen.insert(hex);
  }
  EXPECT_EQ(seen.size(), 100u);
}

TEST(Random, SeedsFitIntoADouble) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 100; ++i) {
    const uint64_t seed = random_seed();
    EXPECT_LT(seed, uint64_t{1} << 53);
    seen.insert(seed);
  }
  EXPECT_EQ(seen.size(), 100u);
}

// Expected values: Python, int.from_bytes(hashlib.sha256(b"...").digest()[:8], "little") & (2**63 - 1).
TEST(Random, SeedOfPromptFollowsTheRule) {
  EXPECT_EQ(seed_of_prompt(std::vector<int32_t>{1, 22, 333}), 3222402661083789749u);  // "1,22,333|0"
  EXPECT_EQ(seed_of_prompt(std::vector<int32_t>{154856}), 2533087659548681498u);      // "154856|0"
}

}  // namespace
}  // namespace tandem::api::random_test
