// Figures of the last second, and where they are written.
#include "cli/live_line.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "base/log.h"

namespace tandem::cli {
namespace {

constexpr std::chrono::milliseconds interval{1000};
constexpr const char* erase = "\r\x1b[K";  // to the line's begin, and all of it away

int64_t tokens_of(const engine::DraftStats& drafts) {
  int64_t tokens = 0;
  for (size_t n = 0; n < drafts.tokens_of_step.size(); ++n)
    tokens += static_cast<int64_t>(n) * drafts.tokens_of_step[n];
  return tokens;
}

std::string rate(double value) { return value < 99.95 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value); }

}  // namespace

LiveFigures live_figures(const engine::Status& before, const engine::Status& now, double seconds) {
  const auto difference = [&](int64_t engine::Status::*count) {
    return static_cast<double>(now.*count - before.*count);
  };
  LiveFigures figures;
  figures.running = now.running;
  figures.waiting = now.waiting;
  figures.tokens_per_s = difference(&engine::Status::generated_tokens) / seconds;
  // A request that is resumed after it was given back counts its kept rows once more.
  const double prompts = difference(&engine::Status::prompt_tokens) - difference(&engine::Status::cached_tokens);
  figures.prompt_tokens_per_s = std::max(prompts, 0.0) / seconds;
  const int64_t steps = now.drafts.steps - before.drafts.steps;
  if (steps > 0) {
    figures.tokens_per_step =
        static_cast<double>(tokens_of(now.drafts) - tokens_of(before.drafts)) / static_cast<double>(steps);
  }
  const int64_t used = now.pool_rows - now.free_rows - now.reclaimable_rows;
  if (now.pool_rows > 0) figures.pool_use = static_cast<double>(used) / static_cast<double>(now.pool_rows);
  return figures;
}

std::string live_text(const LiveFigures& figures, int columns) {
  std::string text = fmt::format("{} run, {} wait, {} tok/s, prompt {}/s", figures.running, figures.waiting,
                                 rate(figures.tokens_per_s), rate(figures.prompt_tokens_per_s));
  if (figures.tokens_per_step) text += fmt::format(", {:.2f}/step", *figures.tokens_per_step);
  text += fmt::format(", pool {:.0f}%", 100 * figures.pool_use);
  text.resize(std::min(text.size(), static_cast<size_t>(std::max(columns, 0))));
  return text;
}

LiveLine::LiveLine(int descriptor)
    : descriptor_(descriptor), is_terminal_(::isatty(descriptor) == 1 && !log_json()), writer_(descriptor) {
  set_log_erases_line(is_terminal_);
}

LiveLine::~LiveLine() {
  clear();
  set_log_erases_line(false);
}

// One less than the terminal has: a character in the last column may wrap.
int LiveLine::columns() const {
  winsize size{};
  if (::ioctl(descriptor_, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return most_columns;
  return std::min(most_columns, size.ws_col - 1);
}

void LiveLine::write(const std::string& text) {
  writer_.write(text, [](int64_t) { return std::string(); });  // figures that were not shown are of no interest later
}

void LiveLine::look(const engine::Status& status, Clock::time_point now) {
  if (!is_terminal_) return;
  if (!before_) {
    before_ = status;
    before_time_ = now;
    return;
  }
  if (now - before_time_ < interval) return;
  const double seconds = std::chrono::duration<double>(now - before_time_).count();
  write(erase + live_text(live_figures(*before_, status, seconds), columns()) + "\r");
  is_shown_ = true;
  before_ = status;
  before_time_ = now;
}

void LiveLine::clear() {
  if (is_shown_) write(erase);
  is_shown_ = false;
}

}  // namespace tandem::cli
