// Figures and text of the live line, and what stands on a terminal when log lines come between.
#include "cli/live_line.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace tandem::cli::live_line_test {
namespace {

using std::chrono::milliseconds;
using Status = engine::Status;

TEST(LiveFigures, AreThoseOfTheInterval) {
  Status before;
  before.generated_tokens = 1000;
  before.prompt_tokens = 500;
  before.cached_tokens = 100;
  before.drafts.begin_step(0);
  before.drafts.add_token(0, false);
  Status now = before;
  now.running = 3;
  now.waiting = 2;
  now.generated_tokens += 30;
  now.prompt_tokens += 400;
  now.cached_tokens += 100;
  now.pool_rows = 1000;
  now.free_rows = 600;
  now.reclaimable_rows = 150;
  now.drafts.begin_step(2);
  for (int32_t place = 0; place < 3; ++place) now.drafts.add_token(place, place < 2);
  now.drafts.begin_step(0);
  now.drafts.add_token(0, false);
  const LiveFigures figures = live_figures(before, now, 2);
  EXPECT_EQ(figures.running, 3);
  EXPECT_EQ(figures.waiting, 2);
  EXPECT_EQ(figures.tokens_per_s, 15);
  EXPECT_EQ(figures.prompt_tokens_per_s, 150);
  EXPECT_EQ(figures.tokens_per_step, 2.0);
  EXPECT_EQ(figures.pool_use, 0.25);
}

TEST(LiveFigures, OfNothing) {
  Status before, now;
  now.cached_tokens = 5;  // a request that was resumed
  const LiveFigures figures = live_figures(before, now, 1);
  EXPECT_EQ(figures.prompt_tokens_per_s, 0);
  EXPECT_FALSE(figures.tokens_per_step);
  EXPECT_EQ(figures.pool_use, 0);
}

TEST(LiveText, FitsItsColumns) {
  const LiveFigures usual{2, 0, 63.14, 1204.4, 2.414, 0.117};
  EXPECT_EQ(live_text(usual, 80), "2 run, 0 wait, 63.1 tok/s, prompt 1204/s, 2.41/step, pool 12%");
  EXPECT_EQ(live_text({}, 80), "0 run, 0 wait, 0.0 tok/s, prompt 0.0/s, pool 0%");
  const LiveFigures most{8, 256, 1234, 12345, 16, 1};
  EXPECT_EQ(live_text(most, LiveLine::most_columns),
            "8 run, 256 wait, 1234 tok/s, prompt 12345/s, 16.00/step, pool 100%");
  EXPECT_EQ(live_text(usual, 10), "2 run, 0 w");
  EXPECT_EQ(live_text(usual, 0), "");
  EXPECT_EQ(live_text(usual, -1), "");
}

// A terminal of `columns`, and the lines that stand on it.
class Terminal {
 public:
  explicit Terminal(uint16_t columns) {
    EXPECT_GE(ends_[0] = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), 0);
    EXPECT_EQ(::grantpt(ends_[0]) | ::unlockpt(ends_[0]), 0);
    std::array<char, 64> name{};
    EXPECT_EQ(::ptsname_r(ends_[0], name.data(), name.size()), 0);
    EXPECT_GE(ends_[1] = ::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC), 0);
    winsize size{};
    size.ws_col = columns;
    EXPECT_EQ(::ioctl(ends_[0], TIOCSWINSZ, &size), 0);
  }
  ~Terminal() {
    for (const int end : ends_) ::close(end);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int descriptor() const { return ends_[1]; }
  const std::vector<std::string>& lines() {
    pollfd ready{.fd = ends_[0], .events = POLLIN, .revents = 0};
    std::array<char, 4096> block;
    while (::poll(&ready, 1, 0) > 0) {
      const ssize_t count = ::read(ends_[0], block.data(), block.size());
      if (count <= 0) break;
      for (ssize_t i = 0; i < count; ++i) put(block[static_cast<size_t>(i)]);
    }
    return lines_;
  }

 private:
  void put(char c) {
    std::string& line = lines_.back();
    if (!escape_.empty() || c == '\x1b') {
      escape_ += c;
      if (escape_ != "\x1b[K") return;
      line.resize(std::min(line.size(), column_));
      escape_.clear();
    } else if (c == '\r') {
      column_ = 0;
    } else if (c == '\n') {
      lines_.emplace_back();
    } else {
      line.resize(std::max(line.size(), column_ + 1), ' ');
      line[column_++] = c;
    }
  }

  std::array<int, 2> ends_{-1, -1};
  std::vector<std::string> lines_{""};
  std::string escape_;
  size_t column_ = 0;
};

TEST(LiveLine, IsRewrittenEverySecondAndGivesWayToLogLines) {
  Terminal terminal(120);
  LogWriter log(terminal.descriptor());
  const std::string log_line = "2026-11-30T20:57:53Z info: request id=a outcome=stop stream=true prompt_tokens=1200";
  const LiveLine::Clock::time_point begin{};
  Status status;
  status.running = 1;
  {
    LiveLine live(terminal.descriptor());
    live.look(status, begin);
    live.look(status, begin + milliseconds(999));
    EXPECT_EQ(terminal.lines(), std::vector<std::string>{""});
    status.generated_tokens = 5;
    live.look(status, begin + milliseconds(1000));
    EXPECT_EQ(terminal.lines(), std::vector<std::string>{"1 run, 0 wait, 5.0 tok/s, prompt 0.0/s, pool 0%"});
    status.generated_tokens = 1005;
    live.look(status, begin + milliseconds(1500));
    live.look(status, begin + milliseconds(3000));
    EXPECT_EQ(terminal.lines(), std::vector<std::string>{"1 run, 0 wait, 500 tok/s, prompt 0.0/s, pool 0%"});
    for (int i = 0; i < 2; ++i) log.write(log_line + "\n", nullptr);
    EXPECT_EQ(terminal.lines(), (std::vector<std::string>{log_line, log_line, ""}));
    live.look(status, begin + milliseconds(4000));
    EXPECT_EQ(terminal.lines().back(), "1 run, 0 wait, 0.0 tok/s, prompt 0.0/s, pool 0%");
  }
  EXPECT_EQ(terminal.lines(), (std::vector<std::string>{log_line, log_line, ""}));
}

TEST(LiveLine, FitsANarrowTerminal) {
  Terminal terminal(20);
  LiveLine live(terminal.descriptor());
  live.look({}, LiveLine::Clock::time_point{});
  live.look({}, LiveLine::Clock::time_point{} + milliseconds(1000));
  EXPECT_EQ(terminal.lines(), std::vector<std::string>{"0 run, 0 wait, 0.0 "});
}

TEST(LiveLine, WritesNothingElsewhere) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  {
    LiveLine live(ends[1]);
    for (int s = 0; s < 5; ++s) live.look({}, LiveLine::Clock::time_point{} + std::chrono::seconds(s));
  }
  char c;
  EXPECT_LT(::read(ends[0], &c, 1), 0);
  for (const int end : ends) ::close(end);
}

// A terminal that nobody reads must not hold up the server.
TEST(LiveLine, NeverWaits) {
  Terminal terminal(120);
  LiveLine live(terminal.descriptor());
  for (int s = 0; s < 5000; ++s) live.look({}, LiveLine::Clock::time_point{} + std::chrono::seconds(s));
}

}  // namespace
}  // namespace tandem::cli::live_line_test
