// The message and the exit statuses that users and scripts rely on.
#include "base/error.h"

namespace tandem {
namespace {

TEST(Error, SaysWhereFoundAndExpected) {
  const Error error(ErrorCode::bad_file, "config.json: hidden_size", "found \"big\"", "an integer");
  EXPECT_STREQ(error.what(), "config.json: hidden_size: found \"big\"; expected an integer");
  EXPECT_STREQ(Error(ErrorCode::usage, "--port", "70000").what(), "--port: 70000");
}

TEST(Error, ExitStatusesAreTheDocumentedOnes) {
  EXPECT_EQ(exit_status(ErrorCode::failed_check), 1);
  EXPECT_EQ(exit_status(ErrorCode::usage), 2);
  EXPECT_EQ(exit_status(ErrorCode::bad_file), 3);
  EXPECT_EQ(exit_status(ErrorCode::does_not_fit), 4);
  EXPECT_EQ(exit_status(ErrorCode::resource), 5);
  EXPECT_EQ(exit_status(ErrorCode::internal), 70);
}

}  // namespace
}  // namespace tandem
