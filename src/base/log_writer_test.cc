// Readers that stall, leave or read slowly: the writer never waits, and says what is missing.
#include "base/log_writer.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <thread>

namespace tandem {
namespace {

std::string notice(int64_t dropped) { return fmt::format("({} dropped)\n", dropped); }

std::string a_line(size_t bytes, char c = 'x') {
  std::string line(bytes, c);
  line.back() = '\n';
  return line;
}

void close_one(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

// ends[0] is read, ends[1] written.
class LogWriterTest : public testing::Test {
 protected:
  void SetUp() override { before_ = std::signal(SIGPIPE, SIG_IGN); }
  void TearDown() override {
    for (int& end : ends_) close_one(end);
    std::signal(SIGPIPE, before_);
  }
  void open_pipe() { ASSERT_EQ(::pipe2(ends_.data(), O_CLOEXEC), 0); }
  void open_sockets() { ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_.data()), 0); }
  void open_terminal() {
    ends_[0] = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ASSERT_GE(ends_[0], 0);
    ASSERT_EQ(::grantpt(ends_[0]) | ::unlockpt(ends_[0]), 0);
    std::array<char, 64> name{};
    ASSERT_EQ(::ptsname_r(ends_[0], name.data(), name.size()), 0);
    ends_[1] = ::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ASSERT_GE(ends_[1], 0);
  }
  // What can be read without waiting.
  std::string read_all() const {
    std::string text;
    std::array<char, 4096> block;
    pollfd ready{.fd = ends_[0], .events = POLLIN, .revents = 0};
    while (::poll(&ready, 1, 20) > 0 && (ready.revents & POLLIN) != 0) {
      const ssize_t count = ::read(ends_[0], block.data(), block.size());
      if (count <= 0) break;
      text.append(block.data(), static_cast<size_t>(count));
    }
    return text;
  }
  // Writes 1000 lines of each size to a reader that reads nothing; a writer that blocks is noticed by the time.
  void expect_no_waiting() {
    for (const size_t bytes : {2u, 150u, 4095u, 4096u, 4097u, 100'000u}) {
      LogWriter writer(ends_[1]);
      auto done = std::async(std::launch::async, [&] {
        for (int i = 0; i < 1000; ++i) writer.write(a_line(bytes), notice);
        for (int i = 0; i < 70'000 && bytes == 2; ++i) writer.write("y\n", notice);  // until it is full
      });
      if (done.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
        ADD_FAILURE() << "blocked with lines of " << bytes;
        while (done.wait_for(std::chrono::seconds(0)) != std::future_status::ready) read_all();
      }
      EXPECT_NE(read_all(), "");
      writer.write("end\n", notice);
      std::string rest = read_all();
      std::erase(rest, '\r');  // a terminal's
      EXPECT_TRUE(rest.ends_with(" dropped)\nend\n")) << bytes << ": " << rest.substr(0, 300);
      read_all();
    }
  }

  std::array<int, 2> ends_{-1, -1};
  void (*before_)(int) = nullptr;
};

TEST_F(LogWriterTest, APipeThatNobodyReadsCostsLinesAndNoTime) {
  open_pipe();
  expect_no_waiting();
}

TEST_F(LogWriterTest, ASocketThatNobodyReadsCostsLinesAndNoTime) {
  open_sockets();
  expect_no_waiting();
}

TEST_F(LogWriterTest, ATerminalThatNobodyReadsCostsLinesAndNoTime) {
  open_terminal();
  expect_no_waiting();
}

TEST_F(LogWriterTest, TheGivenDescriptionStaysAsItIs) {
  open_pipe();
  LogWriter writer(ends_[1]);
  writer.write("a\n", notice);
  EXPECT_EQ(::fcntl(ends_[1], F_GETFL) & O_NONBLOCK, 0);
}

// Every line is there whole or is in a count, and one that was cut off does not run into the next.
TEST_F(LogWriterTest, CountsWhatIsMissing) {
  open_pipe();
  LogWriter writer(ends_[1]);
  constexpr int lines = 500;
  std::string text;
  for (int i = 0; i < lines; ++i) {
    writer.write(a_line(10'000), notice);
    if (i % 100 == 99) text += read_all();
  }
  writer.write("end\n", notice);
  text += read_all();
  int whole = 0, counted = 0;
  for (size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    ASSERT_NE(end, std::string::npos);
    const std::string line = text.substr(at, end - at);
    if (line.starts_with("(")) {
      counted += std::atoi(line.c_str() + 1);
    } else if (line != "end") {
      EXPECT_EQ(line.find_first_not_of('x'), std::string::npos);
      whole += line.size() == 9'999;
    }
  }
  EXPECT_TRUE(text.ends_with("end\n"));
  EXPECT_GT(whole, 10);
  EXPECT_EQ(whole + counted, lines);
}

TEST_F(LogWriterTest, AReaderThatLeavesOrAClosedDescriptorDropsLines) {
  open_pipe();
  int number = ::fcntl(ends_[1], F_DUPFD_CLOEXEC, 100);  // one that no pipe below gets
  LogWriter writer(number);
  writer.write("a\n", notice);
  close_one(ends_[0]);
  close_one(ends_[1]);
  writer.write("b\n", notice);
  LogWriter late(number);  // whose first line is too late
  late.write("c\n", notice);
  ::close(number);
  writer.write("d\n", notice);
  open_pipe();
  ASSERT_EQ(::dup2(ends_[1], number), number);  // another log, and the same number
  writer.write("e\n", notice);
  late.write("f\n", notice);
  EXPECT_EQ(read_all(), "(2 dropped)\ne\n(1 dropped)\nf\n");
  close_one(number);
}

TEST_F(LogWriterTest, FullDisksAndFileSizeLimitsDropLines) {
  if (std::filesystem::exists("/dev/full")) {
    ends_[1] = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
    LogWriter writer(ends_[1]);
    writer.write("a\n", notice);
    close_one(ends_[1]);
  }
  auto* const signal_before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{}, small{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before;
  small.rlim_cur = 3;
  const auto path = std::filesystem::temp_directory_path() / ("tandem-log-" + std::to_string(::getpid()));
  ends_[1] = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ASSERT_GE(ends_[1], 0);
  {
    LogWriter writer(ends_[1]);
    ::setrlimit(RLIMIT_FSIZE, &small);
    writer.write("ab\n", notice);
    writer.write("cd\n", notice);
    ::setrlimit(RLIMIT_FSIZE, &before);
    writer.write("ef\n", notice);
  }
  std::signal(SIGXFSZ, signal_before);
  std::ifstream in(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "ab\n(1 dropped)\nef\n");
  std::filesystem::remove(path);
}

TEST_F(LogWriterTest, LinesOfThreadsDoNotMix) {
  open_pipe();
  LogWriter writer(ends_[1]);
  std::string text;
  std::vector<std::thread> threads;
  for (const char c : {'a', 'b', 'c'})
    threads.emplace_back([&writer, c] {
      for (int i = 0; i < 2; ++i) writer.write(a_line(6'001, c), notice);
    });
  for (auto& thread : threads) thread.join();
  text = read_all();
  EXPECT_EQ(text.size(), 6 * 6'001u);
  for (size_t at = 0; at + 6'001 <= text.size(); at += 6'001)
    EXPECT_EQ(text.substr(at, 6'001), a_line(6'001, text[at]));
}

}  // namespace
}  // namespace tandem
