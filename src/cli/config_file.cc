// A reader of one pass that knows its line.
#include "cli/config_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"

namespace tandem::cli {
namespace {

constexpr size_t largest_file = size_t{1} << 20;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

// Bare words end at what has a meaning of its own.
bool is_bare(char c) { return static_cast<unsigned char>(c) > ' ' && c != '\x7f' && !std::strchr("\"'[]{},#;=", c); }

class Reader {
 public:
  Reader(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {}

  std::vector<Setting> read() {
    std::vector<Setting> settings;
    std::set<std::string> names;
    for (skip_lines(); !at_end(); skip_lines()) {
      Setting setting = read_setting();
      if (!names.insert(setting.name).second)
        throw Error(ErrorCode::usage, setting.where, fmt::format("\"{}\" for the second time", setting.name),
                    "each name once, with a list such as [\"a\", \"b\"] for several values");
      settings.push_back(std::move(setting));
    }
    return settings;
  }

 private:
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\n' : text_[at_]; }

  std::string place() const { return fmt::format("{}: line {}", file_, line_); }
  [[noreturn]] void refuse(const std::string& found, const std::string& expected) const {
    throw Error(ErrorCode::usage, place(), found, expected);
  }
  std::string found() const {
    if (at_end()) return "the end of the file";
    const char c = text_[at_];
    if (c == '\n') return "the end of the line";
    // What is quoted may be a part of a key: one character says enough.
    return static_cast<unsigned char>(c) > ' ' && c < '\x7f' ? fmt::format("'{}'", c)
                                                             : fmt::format("byte {:#04x}", static_cast<uint8_t>(c));
  }

  void skip_blanks() {
    while (!at_end() && (peek() == ' ' || peek() == '\t' || (peek() == '\r' && text_.substr(at_, 2) == "\r\n"))) ++at_;
  }
  // Blanks, then a comment if there is one.
  void skip_to_end_of_line() {
    skip_blanks();
    if (peek() == '#' || peek() == ';') at_ = std::min(text_.find('\n', at_), text_.size());
  }
  void skip_lines() {
    for (skip_to_end_of_line(); !at_end() && peek() == '\n'; skip_to_end_of_line()) {
      ++at_;
      ++line_;
    }
  }

  Setting read_setting() {
    Setting setting;
    setting.where = place();
    const size_t begin = at_;
    while (!at_end() && is_name(peek())) ++at_;
    setting.name = text_.substr(begin, at_ - begin);
    if (setting.name.empty()) refuse(found(), "name = value, or a comment after #");
    skip_blanks();
    if (peek() != '=') refuse(fmt::format("{} after \"{}\"", found(), setting.name), "name = value");
    ++at_;
    skip_blanks();
    if (peek() == '[')
      read_list(setting);
    else
      setting.values.push_back(read_value());
    skip_to_end_of_line();
    if (peek() != '\n')
      refuse(fmt::format("{} after the value of \"{}\"", found(), setting.name),
             "one value on the line, in quotes if it has blanks or signs, or a list such as [\"a\", \"b\"]");
    return setting;
  }

  std::string read_value() {
    const char quote = peek();
    if (quote == '"' || quote == '\'') {
      const size_t begin = ++at_;
      while (!at_end() && peek() != quote && peek() != '\n') {
        if (static_cast<unsigned char>(peek()) < ' ' && peek() != '\t') break;
        ++at_;
      }
      if (at_end() || peek() != quote)
        refuse(fmt::format("{} within a text", found()), fmt::format("the closing {} on the same line", quote));
      return std::string(text_.substr(begin, at_++ - begin));
    }
    const size_t begin = at_;
    while (!at_end() && is_bare(peek())) ++at_;
    if (at_ == begin) refuse(found(), "a value");
    return std::string(text_.substr(begin, at_ - begin));
  }

  void read_list(Setting& setting) {
    ++at_;
    const std::string expected =
        fmt::format(", or the ] of the list of \"{}\" that begins in line {}", setting.name, line_);
    for (skip_lines(); peek() != ']' || setting.values.empty(); skip_lines()) {
      if (at_end()) refuse(found(), "a value" + expected);
      if (peek() == ']') refuse(fmt::format("an empty list for \"{}\"", setting.name), "a value, or no such line");
      setting.values.push_back(read_value());
      skip_lines();
      if (peek() == ']') break;
      if (at_end() || peek() != ',') refuse(found(), "a comma" + expected);
      ++at_;
    }
    ++at_;
  }

  std::string_view text_;
  const std::string file_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

struct Descriptor {
  int value = -1;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

}  // namespace

std::vector<Setting> parse_settings(std::string_view text, const std::string& file) {
  return Reader(text, file).read();
}

std::vector<Setting> read_settings(const std::filesystem::path& path) {
  const std::string name = path.string();
  const auto unreadable = [&](int number) {
    if (number == ENOENT || number == ENOTDIR) throw Error(ErrorCode::bad_file, name, "does not exist", "a file");
    throw Error(ErrorCode::resource, name, std::strerror(number), "a readable file");
  };
  // What it is is asked first: opening a device can have effects.
  struct stat info {};
  if (::stat(name.c_str(), &info) != 0) unreadable(errno);
  if (!S_ISREG(info.st_mode) && !S_ISFIFO(info.st_mode))
    throw Error(ErrorCode::bad_file, name, "is neither a file nor a pipe", "a file of settings");
  const Descriptor file{::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY)};
  if (file.value < 0) unreadable(errno);
  std::string text;
  std::array<char, 16384> piece{};
  for (;;) {
    const ssize_t count = ::read(file.value, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) unreadable(errno);
    if (count == 0) break;
    text.append(piece.data(), static_cast<size_t>(count));
    if (text.size() > largest_file)
      throw Error(ErrorCode::bad_file, name, "is larger than 1 MiB", "a file of settings");
  }
  return parse_settings(text, name);
}

}  // namespace tandem::cli
