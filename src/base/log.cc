// Log lines: formatted whole, then written in one call, so that lines of different threads never mix.
#include "base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>

namespace tandem {
namespace {

std::atomic<LogLevel> current_level{LogLevel::info};
std::atomic<bool> write_json{false};

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

}  // namespace

void set_log_level(LogLevel level) { current_level = level; }
void set_log_json(bool json) { write_json = json; }
LogLevel log_level() { return current_level; }

void log_line(LogLevel level, std::string_view text) {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &utc);
  const std::string line = write_json ? fmt::format("{{\"time\":\"{}\",\"level\":\"{}\",\"message\":\"{}\"}}\n", stamp,
                                                    name_of(level), escaped(text))
                                      : fmt::format("{} {}: {}\n", stamp, name_of(level), text);
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call, so lines of several threads do not mix
}

}  // namespace tandem
