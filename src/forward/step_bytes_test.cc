// Steps survive the way through bytes, and nothing but a whole, undamaged step is accepted.
#include "base/crc32c.h"
#include "base/error.h"
#include "forward/step.h"

namespace tandem::forward {
namespace {

Step example() {
  Step step;
  step.keeps = {{0, 3, 17}};
  step.restores = {{1, 2, 300}, {2, 2, 300}};
  step.page_copies = {{4, 5, 44, 1}};
  step.tokens = {7, 8, 9};
  step.positions = {int64_t{1} << 40, 301, 302};
  step.segments = {{1, 0, 2, 0, 3, 2, 300}};
  step.page_tables = {4, 5};
  step.logit_rows = {2};
  step.head_slots = {2};
  return step;
}

std::vector<std::byte> bytes_of(const Step& step) {
  std::vector<std::byte> bytes;
  write_step(step, bytes);
  return bytes;
}

TEST(StepBytes, RoundTrip) {
  Step step = single_stream_step(std::vector<int32_t>{1, 2}, 5, 9);  // what was in it is replaced
  for (const Step& original : {example(), Step{}, single_stream_step(std::vector<int32_t>{3}, 0, 1)}) {
    read_step(bytes_of(original), step);
    EXPECT_EQ(step, original);
  }
}

TEST(StepBytes, LittleEndianWithVersionAndCrc) {
  const std::vector<std::byte> bytes = bytes_of(Step{});
  ASSERT_EQ(bytes.size(), 4u * 12);
  const std::string head(reinterpret_cast<const char*>(bytes.data()), 8);
  EXPECT_EQ(head, std::string("STEP\x01\0\0\0", 8));
}

TEST(StepBytes, EveryDamagedByteIsRefused) {
  const std::vector<std::byte> bytes = bytes_of(example());
  Step step;
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int bit : {0, 7}) {
      std::vector<std::byte> damaged = bytes;
      damaged[i] ^= std::byte{1} << bit;
      EXPECT_THROW(read_step(damaged, step), Error) << "byte " << i;
    }
  }
}

TEST(StepBytes, ShortAndLongAreRefused) {
  std::vector<std::byte> bytes = bytes_of(example());
  Step step;
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_THROW(read_step(std::span(bytes).first(n), step), Error) << n;
  bytes.push_back(std::byte{0});
  EXPECT_THROW(read_step(bytes, step), Error);
}

TEST(StepBytes, OtherVersionsAreNamed) {
  std::vector<std::byte> bytes = bytes_of(example());
  bytes[4] = std::byte{2};
  Step step;
  try {
    read_step(bytes, step);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.found(), "version 2");
    EXPECT_EQ(e.expected(), "1");
  }
}

}  // namespace
}  // namespace tandem::forward
