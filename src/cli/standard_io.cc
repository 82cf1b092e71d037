// Plain read and write calls, because signals must interrupt the first and errors of the second must not pass unseen.
#include "cli/standard_io.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/mapped_file.h"

namespace tandem::cli {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

void on_interrupt(int) { interrupted = true; }

[[noreturn]] void refuse(const char* where) { throw Error(ErrorCode::resource, where, std::strerror(errno)); }

// The reader has gone (`tandem generate | head -1`): nothing is wrong and there is nothing to say, so the program ends
// as every other in a pipeline does. SIGPIPE is ignored until here for the sake of the log and of recordings.
void end_by_broken_pipe() {
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
  errno = EPIPE;  // it may be blocked
}

// Bytes read, 0 at the end, -1 when a signal came first.
ssize_t read_some(std::string& buffer) {
  char block[4096];
  const ssize_t count = ::read(STDIN_FILENO, block, sizeof block);
  if (count > 0) buffer.append(block, static_cast<size_t>(count));
  if (count < 0 && errno != EINTR) refuse("standard input");
  return count;
}

}  // namespace

void write_out(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      if (errno == EPIPE) end_by_broken_pipe();
      refuse("standard output");
    }
    text.remove_prefix(static_cast<size_t>(count));
  }
}

std::string read_standard_input() {
  std::string text;
  while (read_some(text) != 0) {
  }
  return text;
}

std::string read_text(const std::string& path) {
  if (path == "-") return read_standard_input();
  struct stat info {};
  const bool pipe = ::stat(path.c_str(), &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode));
  if (!pipe) return std::string(MappedFile::open(path).text());
  std::ifstream in(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (in.bad() || !in.is_open()) throw Error(ErrorCode::resource, path, "cannot be read", "a readable file");
  return text;
}

bool output_is_terminal() { return ::isatty(STDOUT_FILENO) != 0; }
bool input_is_terminal() { return ::isatty(STDIN_FILENO) != 0; }

LineReader::Result LineReader::read(std::string& line, const std::atomic<bool>& flag) {
  while (true) {
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos || (at_end_ && !buffer_.empty())) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end == std::string::npos ? end : end + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return Result::line;
    }
    if (at_end_) return Result::end;
    if (flag) return Result::interrupted;
    // A signal between the test above and the read would be missed; the time limit notices it.
    pollfd waiting{STDIN_FILENO, POLLIN, 0};
    if (::poll(&waiting, 1, 200) <= 0) continue;
    if (read_some(buffer_) == 0) at_end_ = true;
  }
}

InterruptFlag::InterruptFlag() {
  interrupted = false;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
}

InterruptFlag::~InterruptFlag() { std::signal(SIGINT, SIG_DFL); }

const std::atomic<bool>& InterruptFlag::flag() const { return interrupted; }
void InterruptFlag::clear() { interrupted = false; }

}  // namespace tandem::cli
