// poll(2) before each write(2) of at most PIPE_BUF bytes: a pipe that has room for any has room for so many. Between
// the two another process may take the room, and a terminal may have room for less; so these two are opened once more,
// as a description that does not block (O_NONBLOCK on the given one would change it for everybody who shares it).
#include "base/log_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace tandem {

LogWriter::~LogWriter() {
  if (own_ >= 0) ::close(own_);
}

int LogWriter::descriptor_that_does_not_block() {
  struct stat file {};
  if (::fstat(descriptor_, &file) != 0) return descriptor_;  // closed: write() will say so
  const bool is_known = file.st_dev == own_file_.st_dev && file.st_ino == own_file_.st_ino;
  if (!is_known) {
    if (own_ >= 0) ::close(own_);
    own_ = -1;
    own_file_ = file;
    if (S_ISFIFO(file.st_mode) || ::isatty(descriptor_) != 0) {
      const std::string path = "/proc/self/fd/" + std::to_string(descriptor_);
      own_ = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    }
  }
  return own_ >= 0 ? own_ : descriptor_;
}

// False: not all of the text could be written.
bool LogWriter::put(std::string_view text) {
  const int descriptor = descriptor_that_does_not_block();
  size_t done = 0;
  while (done < text.size()) {
    pollfd room{.fd = descriptor, .events = POLLOUT, .revents = 0};
    if (::poll(&room, 1, 0) < 0 && errno == EINTR) continue;
    if ((room.revents & POLLOUT) == 0) break;
    const ssize_t count = ::write(descriptor, text.data() + done, std::min<size_t>(text.size() - done, PIPE_BUF));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  if (done > 0) is_cut_ = done < text.size();
  return done == text.size();
}

void LogWriter::write(std::string_view line, Notice notice) {
  const std::lock_guard lock(mutex_);
  if (dropped_ > 0) {
    std::string text = is_cut_ ? "\n" : "";
    text += notice(dropped_);
    if (!put(text)) {
      ++dropped_;
      return;
    }
    dropped_ = 0;
  }
  if (!put(line)) ++dropped_;
}

}  // namespace tandem
