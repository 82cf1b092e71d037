// Where log lines go. A reader that stalls or leaves costs lines, never time: threads that log are those that serve.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace tandem {

class LogWriter {
 public:
  // `descriptor` must stay open as long as the writer, or every line is dropped. It may be made to refer to another
  // file meanwhile (dup2).
  explicit LogWriter(int descriptor) : descriptor_(descriptor) {}
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Says in a line of its own how many were dropped.
  using Notice = std::string (*)(int64_t dropped);

  // `line` ends with "\n". Any thread; lines do not mix. A line for which there is no room, or whose reader is gone, is
  // dropped and counted; the next one that can be written comes after `notice` of the count. SIGPIPE and SIGXFSZ must
  // be ignored.
  void write(std::string_view line, Notice notice);

 private:
  int descriptor_that_does_not_block();
  bool put(std::string_view text);

  const int descriptor_;
  std::mutex mutex_;  // guards everything below
  int own_ = -1;      // a description of the same file that does not block; -1: there is none
  struct stat own_file_ {};
  int64_t dropped_ = 0;
  bool is_cut_ = false;  // the last line that was written lacks its end
};

}  // namespace tandem
