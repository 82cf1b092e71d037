// Standard input and output with their failures noticed.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

namespace tandem::cli {

// Writes and flushes. Throws Error(resource) if the text could not be written; when its reader has gone, the program
// ends by SIGPIPE.
void write_out(std::string_view text);

// Everything up to the end of standard input. Throws Error(resource).
std::string read_standard_input();

// The text of a file, of a pipe ("<(…)", /dev/stdin) or, for "-", of standard input. Throws Error(bad_file) if there is
// no such thing, Error(resource) if it cannot be read.
std::string read_text(const std::string& path);

bool output_is_terminal();
bool input_is_terminal();

// Lines of standard input, read so that a signal can interrupt the waiting (std::getline would wait on).
class LineReader {
 public:
  enum class Result { line, interrupted, end };
  // A line without its end ("\n" or "\r\n"). interrupted: `flag` was set while waiting; what had been typed is dropped
  // by the terminal.
  Result read(std::string& line, const std::atomic<bool>& flag);

 private:
  std::string buffer_;
  bool at_end_ = false;
};

// While it lives, SIGINT (Ctrl-C) sets the flag instead of ending the program, and interrupts reads.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  const std::atomic<bool>& flag() const;
  bool is_set() const { return flag(); }
  void clear();
};

}  // namespace tandem::cli
