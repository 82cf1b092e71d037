// What a person at the terminal of `serve` sees while it runs: one line of figures, rewritten about once a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/log_writer.h"
#include "engine/engine.h"

namespace tandem::cli {

struct LiveFigures {
  int64_t running = 0, waiting = 0;
  double tokens_per_s = 0, prompt_tokens_per_s = 0;  // sampled; prompt tokens of admitted requests less cached ones
  std::optional<double> tokens_per_step;             // mean acceptance length (spec/speculation.md 6.1); none: no step
  double pool_use = 0;                               // share of the rows that requests hold, 0 to 1
};

// Between two looks at an engine, `seconds` > 0 apart.
LiveFigures live_figures(const engine::Status& before, const engine::Status& now, double seconds);

// In at most `columns` characters.
std::string live_text(const LiveFigures& figures, int columns);

// The cursor waits at the line's begin, so that a log line of whatever thread takes its place: log lines erase it
// first.
class LiveLine {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int most_columns = 100;

  // Writes nothing unless `descriptor` is a terminal and log lines are no JSON. It must stay open as long as this.
  explicit LiveLine(int descriptor);
  ~LiveLine();
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  // To be called more often than once a second; most calls do nothing. Never waits for the terminal.
  void look(const engine::Status& status, Clock::time_point now);
  // Takes the line away; the next look() may bring it back.
  void clear();

 private:
  int columns() const;
  void write(const std::string& text);

  int descriptor_;
  bool is_terminal_;
  bool is_shown_ = false;
  LogWriter writer_;
  std::optional<engine::Status> before_;
  Clock::time_point before_time_;
};

}  // namespace tandem::cli
