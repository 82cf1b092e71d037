// Log lines: formatted whole, then handed to the writer.
#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>
#include <string>

#include "base/log_writer.h"

namespace tandem {
namespace {

std::atomic<LogLevel> current_level{LogLevel::info};
std::atomic<bool> write_json{false}, erases_line{false};

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::error: return "error";
    case LogLevel::warning: return "warning";
    case LogLevel::info: return "info";
    case LogLevel::debug: return "debug";
  }
  return "info";
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out;
}

// A number with three decimals at most: milliseconds measured by a clock of microseconds.
std::string decimals(double value) {
  std::string text = fmt::format("{:.3f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

std::string json_text(const LogField::Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* real = std::get_if<double>(&value)) return std::isfinite(*real) ? decimals(*real) : "null";
  if (const auto* text = std::get_if<std::string_view>(&value)) return fmt::format("\"{}\"", escaped(*text));
  return "null";
}

std::string plain_text(const LogField::Value& value) {
  const auto* text = std::get_if<std::string_view>(&value);
  if (text && !text->empty() && text->find_first_of(" \"=\\") == std::string_view::npos) return std::string(*text);
  return std::holds_alternative<std::monostate>(value) ? "-" : json_text(value);
}

// `members`: more members of the JSON object, each with a comma before it.
std::string line_of(LogLevel level, std::string_view text, std::string_view members) {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return write_json ? fmt::format("{{\"time\":\"{}\",\"level\":\"{}\",\"message\":\"{}\"{}}}\n", stamp, name_of(level),
                                  escaped(text), members)
                    : fmt::format("{}{} {}: {}\n", erases_line ? "\r\x1b[K" : "", stamp, name_of(level), text);
}

std::string notice_of(int64_t dropped) {
  return line_of(LogLevel::warning, fmt::format("{} log lines were dropped", dropped), {});
}

void write_line(LogLevel level, std::string_view text, std::string_view members) {
  static auto* const writer = new LogWriter(STDERR_FILENO);  // never deleted: threads may log until the very end
  writer->write(line_of(level, text, members), notice_of);
}

}  // namespace

void set_log_level(LogLevel level) { current_level = level; }
void set_log_json(bool json) { write_json = json; }
LogLevel log_level() { return current_level; }
bool log_json() { return write_json; }
void set_log_erases_line(bool erases) { erases_line = erases; }

void log_line(LogLevel level, std::string_view text) { write_line(level, text, {}); }

void log_record(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (level > log_level()) return;
  std::string text(message), members;
  for (const LogField& field : fields) {
    if (write_json) {
      members += fmt::format(",\"{}\":{}", field.name, json_text(field.value));
    } else {
      text += fmt::format(" {}={}", field.name, plain_text(field.value));
    }
  }
  write_line(level, text, members);
}

}  // namespace tandem
