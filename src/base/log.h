// Log lines on stderr: one line a record, with a level. Own code because it is 100 lines over fmt and spdlog would cost
// seconds of compile time in every file that logs.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <variant>

namespace tandem {

enum class LogLevel { error, warning, info, debug };

void set_log_level(LogLevel level);
void set_log_json(bool json);
LogLevel log_level();
bool log_json();
// Plain lines first erase the line that the terminal's cursor is in: something is shown there that is rewritten (a live
// line). For a log that goes to a terminal.
void set_log_erases_line(bool erases);
void log_line(LogLevel level, std::string_view text);

// A named value of a record. Strings must outlive the call that takes the field; monostate: not known.
struct LogField {
  using Value = std::variant<std::monostate, bool, int64_t, double, std::string_view>;

  template <typename T>
  LogField(std::string_view field_name, const T& field_value) : name(field_name), value(field_value) {}
  LogField(std::string_view field_name, const std::optional<double>& field_value)
      : name(field_name), value(field_value ? Value(*field_value) : Value()) {}

  std::string_view name;
  Value value;
};

// A line that programs read: fields of their own in JSON, else "message name=value ..." with "-" for what is not known
// and quotes around what holds spaces.
void log_record(LogLevel level, std::string_view message, std::initializer_list<LogField> fields);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level <= log_level()) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tandem
