// The check values of RFC 3720, appendix B.4.
#include "base/crc32c.h"

#include <numeric>

namespace tandem {
namespace {

TEST(Crc32c, KnownValues) {
  std::vector<std::byte> zeros(32), ones(32, std::byte{0xFF});
  EXPECT_EQ(crc32c(zeros), 0x8A9136AAu);
  EXPECT_EQ(crc32c(ones), 0x62A8AB43u);
  const std::string digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xE3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

}  // namespace
}  // namespace tandem
