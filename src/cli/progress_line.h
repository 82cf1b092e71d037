// A line that tells how far a long run is, on a terminal only.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace tandem::cli {

class ProgressLine {
 public:
  ProgressLine() = default;
  ~ProgressLine() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text) {
    constexpr double after_seconds = 2;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    if (!is_terminal_ || elapsed.count() < after_seconds) return;
    shown_ = true;
    std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
  }

 private:
  bool is_terminal_ = ::isatty(STDERR_FILENO) != 0, shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tandem::cli
