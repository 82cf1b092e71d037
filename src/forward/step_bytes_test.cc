// Steps survive the way through bytes, and nothing but a whole, undamaged step is accepted.
#include <cstring>

#include "base/crc32c.h"
#include "base/error.h"
#include "forward/step.h"

namespace tandem::forward::step_bytes_test {
namespace {

Step example() {
  Step step;
  step.kind = StepKind::mtp_absorb;
  step.keeps = {{0, 3, 17}};
  step.restores = {{1, 2, 300}, {2, 2, 300}};
  step.page_copies = {{4, 5, 44, 1}};
  step.tokens = {7, 8, 9};
  step.positions = {int64_t{1} << 40, 301, 302};
  step.segments = {{1, 0, 2, 0, 3, 2, 300, 290}};
  step.page_tables = {4, 5};
  step.logit_rows = {2};
  step.head_slots = {2};
  step.samples = {{.temperature = 0.7,
                   .top_p = 0.9,
                   .min_p = 0.01,
                   .seed = ~uint64_t{1},
                   .position = int64_t{1} << 40,
                   .row = 0,
                   .top_k = 20,
                   .size = 1900,
                   .first_masked = 1,
                   .masked = 2,
                   .wants_probability = 1},
                  {.temperature = -0.0, .row = 1}};
  step.masked_tokens = {5, 6, 7};
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

TEST(StepBytes, LittleEndianWithVersionKindAndCrc) {
  Step step;
  step.kind = StepKind::mtp_chain;
  const std::vector<std::byte> bytes = bytes_of(step);
  ASSERT_EQ(bytes.size(), 4u * 15);
  const std::string head(reinterpret_cast<const char*>(bytes.data()), 12);
  EXPECT_EQ(head, std::string("STEP\x03\0\0\0\x02\0\0\0", 12));
  step.segments.push_back({.position = 1, .context_from = 0x0807060504030201});
  const std::vector<std::byte> segment = bytes_of(step);
  ASSERT_EQ(segment.size(), 4u * 15 + 40);
  const std::string context(reinterpret_cast<const char*>(segment.data()) + 4 * 14 + 32, 8);
  EXPECT_EQ(context, "\x01\x02\x03\x04\x05\x06\x07\x08");
}

TEST(StepBytes, EveryKindSurvives) {
  Step step, back;
  for (const StepKind kind : {StepKind::text, StepKind::mtp_absorb, StepKind::mtp_chain, StepKind::dflash2}) {
    step = example();
    step.kind = kind;
    read_step(bytes_of(step), back);
    EXPECT_EQ(back, step);
    EXPECT_EQ(back.kind, kind);
  }
}

// Whole but for its kind: the checksum is made anew.
TEST(StepBytes, UnknownKindsAreNamed) {
  std::vector<std::byte> bytes = bytes_of(example());
  for (const uint8_t byte : {uint8_t{4}, uint8_t{255}}) {
    bytes[8] = std::byte{byte};
    const uint32_t crc = crc32c(std::span(bytes).first(bytes.size() - 4));
    std::memcpy(bytes.data() + bytes.size() - 4, &crc, 4);
    Step step;
    try {
      read_step(bytes, step);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.found(), "step kind " + std::to_string(byte));
      EXPECT_EQ(e.expected(), "0 to 3");
    }
  }
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
    EXPECT_EQ(e.expected(), "3");
  }
}

}  // namespace
}  // namespace tandem::forward::step_bytes_test
