// The blocks are zeroed, movable, and refuse what cannot be had.
#include "device/host_memory.h"

#include <utility>

#include "base/error.h"

namespace tandem::device::host_memory_test {
namespace {

TEST(HostMemory, IsZeroedAndMovable) {
  HostMemory a(5'000'000, "test", "less");
  ASSERT_GE(a.size(), 5'000'000);
  for (int64_t i = 0; i < 1'250'000; i += 1000) EXPECT_EQ(a.floats()[i], 0.0f);
  a.floats()[7] = 3.0f;
  HostMemory b = std::move(a);
  EXPECT_EQ(b.floats()[7], 3.0f);
  HostMemory c;
  c = std::move(b);
  EXPECT_EQ(c.floats()[7], 3.0f);
  EXPECT_EQ(HostMemory(0, "test", "less").data(), nullptr);
}

TEST(HostMemory, WhatCannotBeHadIsAnErrorThatNamesIt) {
  try {
    const HostMemory block(int64_t{1} << 60, "token pool", "a smaller pool");
    FAIL() << "an exabyte was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    EXPECT_EQ(error.where(), "token pool");
    EXPECT_EQ(error.expected(), "a smaller pool");
  }
}

}  // namespace
}  // namespace tandem::device::host_memory_test
