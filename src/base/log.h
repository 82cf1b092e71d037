// Log lines on stderr: one line a record, with a level. Own code because it is 40 lines over fmt and spdlog would cost
// seconds of compile time in every file that logs.
#pragma once

#include <fmt/core.h>

#include <string_view>

namespace tandem {

enum class LogLevel { error, warning, info, debug };

void set_log_level(LogLevel level);
void set_log_json(bool json);
LogLevel log_level();
void log_line(LogLevel level, std::string_view text);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level <= log_level()) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tandem
