// What a log line looks like, as text and as JSON.
#include "base/log.h"

namespace tandem {
namespace {

class LogTest : public testing::Test {
 protected:
  void TearDown() override {
    set_log_json(false);
    set_log_level(LogLevel::info);
  }
  // The line without its time.
  static std::string record(bool json) {
    set_log_json(json);
    testing::internal::CaptureStderr();
    const std::string id = "a b\"c\n";
    log_record(LogLevel::info, "request",
               {{"id", id},
                {"outcome", "stop"},
                {"empty", ""},
                {"stream", true},
                {"tokens", int64_t{12}},
                {"total_ms", 1.25},
                {"ttft_ms", std::optional<double>(2.0)},
                {"itl_ms", std::optional<double>()}});
    const std::string line = testing::internal::GetCapturedStderr();
    const size_t skipped =
        json ? std::string("{\"time\":\"2026-11-30T20:00:00Z\",").size() : std::string("2026-11-30T20:00:00Z ").size();
    return line.size() < skipped ? line : line.substr(skipped);
  }
};

TEST_F(LogTest, RecordAsText) {
  EXPECT_EQ(
      record(false),
      "info: request id=\"a b\\\"c\\u000a\" outcome=stop empty=\"\" stream=true tokens=12 total_ms=1.25 ttft_ms=2 "
      "itl_ms=-\n");
}

TEST_F(LogTest, RecordAsJson) {
  EXPECT_EQ(record(true),
            "\"level\":\"info\",\"message\":\"request\",\"id\":\"a b\\\"c\\u000a\",\"outcome\":\"stop\",\"empty\":\"\","
            "\"stream\":true,\"tokens\":12,\"total_ms\":1.25,\"ttft_ms\":2,\"itl_ms\":null}\n");
}

TEST_F(LogTest, LevelHidesRecords) {
  set_log_level(LogLevel::warning);
  EXPECT_LT(record(false).size(), 1u);
}

TEST_F(LogTest, LinesMayEraseWhatIsShown) {
  const auto line = [] {
    testing::internal::CaptureStderr();
    log(LogLevel::info, "on top");
    return testing::internal::GetCapturedStderr();
  };
  set_log_erases_line(true);
  EXPECT_EQ(line().find("\r\x1b[K"), 0u);
  set_log_json(true);
  EXPECT_EQ(line().find("{"), 0u);
  set_log_json(false);
  set_log_erases_line(false);
  EXPECT_EQ(line().find("\r"), std::string::npos);
}

}  // namespace
}  // namespace tandem
