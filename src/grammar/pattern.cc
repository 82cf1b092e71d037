// A scanner of regular expressions: it refuses what would be ignored and finds the alternatives and their anchors.
#include "grammar/pattern.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "text/utf8.h"

namespace tandem::grammar {

namespace {

constexpr std::string_view any_characters = ".*";

// JSON writes these with a backslash, which no match of a pattern in a string may have.
bool is_escaped_in_json(uint32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

struct Alternative {
  std::string text;  // without its anchors
  bool from_start = false, to_end = false;
  int64_t atoms = 0;                                 // single characters, sets and groups
  std::string last_atom;                             // the text of the last one
  std::optional<std::array<int64_t, 2>> quantifier;  // of the last one; [1] −1: no limit
};

class Scanner {
 public:
  Scanner(std::string_view regex, bool in_json, const std::string& where)
      : regex_(regex), in_json_(in_json), where_(where) {}

  std::vector<Alternative> alternatives() {
    std::vector<Alternative> all{scan_alternative(0)};
    while (at_ < regex_.size()) {
      if (regex_[at_] != '|') refuse("')' without '('", "balanced groups");
      ++at_;
      all.push_back(scan_alternative(0));
    }
    return all;
  }

 private:
  [[noreturn]] void refuse(const std::string& found, const std::string& expected) const {
    throw Error(ErrorCode::usage, where_, fmt::format("{} at byte {} of the regular expression", found, at_), expected);
  }
  bool has(std::string_view text) const { return regex_.substr(at_, text.size()) == text; }

  // Up to '|', ')' or the end.
  Alternative scan_alternative(int depth) {
    constexpr int most_depth = 64;
    if (depth > most_depth) refuse("groups nested too deeply", fmt::format("at most {}", most_depth));
    Alternative out;
    if (at_ < regex_.size() && regex_[at_] == '^') {
      if (depth > 0) refuse("'^' inside a group", "'^' at the start of a whole alternative");
      out.from_start = true;
      ++at_;
    }
    while (at_ < regex_.size() && regex_[at_] != '|' && regex_[at_] != ')') {
      if (out.to_end) refuse("text after '$'", "'$' at the end of a whole alternative");
      if (regex_[at_] == '^') refuse("'^' inside an alternative", "'^' at the start of a whole alternative");
      if (regex_[at_] == '$') {
        if (depth > 0) refuse("'$' inside a group", "'$' at the end of a whole alternative");
        out.to_end = true;
        ++at_;
        continue;
      }
      const std::string atom = scan_atom(depth);
      out.quantifier.reset();
      std::string repeat;
      if (at_ < regex_.size()) repeat = scan_quantifier(out);
      out.last_atom = atom;
      out.text += atom + repeat;
      ++out.atoms;
    }
    return out;
  }

  std::string scan_atom(int depth) {
    const char c = regex_[at_];
    if (c == '(') return scan_group(depth);
    if (c == '[') return scan_class();
    if (c == '\\') return scan_escape(false);
    if (c == '*' || c == '+' || c == '?')
      refuse(fmt::format("'{}' with nothing to repeat", c), "a character before it");
    if (c == '{') refuse("'{' with nothing to repeat", "a character before it, or \\{");
    if (c == '.') {
      ++at_;
      return ".";
    }
    return scan_character();
  }

  std::string scan_group(int depth) {
    ++at_;
    if (has("?")) {
      if (has("?:")) {
        at_ += 2;
      } else if (has("?<") && !has("?<=") && !has("?<!")) {
        const size_t end = regex_.find('>', at_);
        if (end == std::string_view::npos) refuse("a group name without '>'", "(?<name>…)");
        at_ = end + 1;
      } else {
        refuse(fmt::format("'({}'", std::string(regex_.substr(at_, 3))), "groups without lookaround and flags");
      }
    }
    std::string text = "(";
    while (true) {
      text += scan_alternative(depth + 1).text;
      if (at_ >= regex_.size()) refuse("'(' without ')'", "balanced groups");
      if (regex_[at_++] == ')') break;
      text += '|';
    }
    return text + ")";
  }

  // As it stands, but for characters beyond ASCII, which are written as escapes.
  std::string scan_class() {
    std::string text = "[";
    ++at_;
    const bool is_negated = has("^");
    if (is_negated) {
      text += '^';
      ++at_;
    }
    const size_t begin = at_;
    bool has_usable = is_negated;
    while (at_ < regex_.size() && regex_[at_] != ']') {
      const size_t member = at_;
      const std::string one = regex_[at_] == '\\' ? scan_escape(true) : scan_character_of_class();
      has_usable = has_usable || one.size() > 1 || !is_escaped_in_json(static_cast<unsigned char>(regex_[member]));
      text += one;
    }
    if (at_ >= regex_.size()) refuse("'[' without ']'", "a closed set");
    if (at_ == begin) refuse("an empty set", "at least one character");
    if (in_json_ && !has_usable) refuse("a set of characters that JSON escapes", "other characters");
    ++at_;
    return text + "]";
  }

  std::string scan_character_of_class() {
    if (regex_[at_] == '[') {
      ++at_;
      return "\\[";
    }
    return scan_code_point(true);
  }

  std::string scan_character() { return scan_code_point(false); }

  std::string scan_code_point(bool in_class) {
    const auto lead = static_cast<unsigned char>(regex_[at_]);
    if (lead < 0x80) {
      if (in_json_ && !in_class && is_escaped_in_json(lead))
        refuse("a character that JSON escapes", "characters that strings hold as they are");
      ++at_;
      if (lead < 0x20) return fmt::format("\\u{{{:x}}}", lead);
      return std::string(1, static_cast<char>(lead));
    }
    const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    uint32_t code = lead & (0xFFu >> (size + 1));
    for (size_t i = 1; i < size && at_ + i < regex_.size(); ++i)
      code = code << 6 | (static_cast<unsigned char>(regex_[at_ + i]) & 0x3Fu);
    at_ = std::min(regex_.size(), at_ + size);
    return fmt::format("\\u{{{:x}}}", code);
  }

  std::string scan_escape(bool in_class) {
    if (at_ + 1 >= regex_.size()) refuse("a lone backslash", "an escaped character");
    const char c = regex_[at_ + 1];
    constexpr std::string_view sets = "dDwWsS", controls = "ntrfv0";
    const bool is_alphanumeric = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (sets.find(c) != std::string_view::npos) {
      at_ += 2;
      return {'\\', c};
    }
    if (controls.find(c) != std::string_view::npos) {
      if (in_json_ && !in_class) refuse(fmt::format("'\\{}'", c), "characters that strings hold without escapes");
      at_ += 2;
      return c == '0' ? "\\u{0}" : std::string{'\\', c};
    }
    if (c == 'x' || c == 'u') return scan_hex(in_class);
    if (is_alphanumeric) refuse(fmt::format("'\\{}'", c), "\\d \\w \\s \\D \\W \\S, \\xHH, \\uHHHH or an escaped sign");
    ++at_;
    if (in_json_ && !in_class && (c == '"' || c == '\\'))
      refuse("a character that JSON escapes", "characters that strings hold as they are");
    const std::string one = scan_code_point(true);
    return static_cast<unsigned char>(c) < 0x80 && static_cast<unsigned char>(c) > 0x20 ? "\\" + one : one;
  }

  std::string scan_hex(bool in_class) {
    const bool braced = has("\\u{");
    const size_t begin = at_ + (braced ? 3 : 2);
    const size_t end = braced ? regex_.find('}', begin) : begin + (regex_[at_ + 1] == 'x' ? 2 : 4);
    const std::string_view digits = end <= regex_.size() ? regex_.substr(begin, end - begin) : std::string_view{};
    const bool is_hex = !digits.empty() && digits.size() <= 6 &&
                        digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
    if (!is_hex) refuse("an incomplete hexadecimal escape", "\\xHH, \\uHHHH or \\u{H…}");
    const uint32_t code = static_cast<uint32_t>(std::strtoul(std::string(digits).c_str(), nullptr, 16));
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) refuse("an escape of no character", "a code point");
    if (in_json_ && !in_class && is_escaped_in_json(code))
      refuse("a character that JSON escapes", "characters that strings hold as they are");
    at_ = end + (braced ? 1 : 0);
    return fmt::format("\\u{{{:x}}}", code);
  }

  std::string scan_quantifier(Alternative& out) {
    const char c = regex_[at_];
    if (c == '*' || c == '+' || c == '?') {
      ++at_;
      out.quantifier = std::array<int64_t, 2>{c == '+' ? 1 : 0, c == '?' ? 1 : -1};
      skip_lazy();
      return std::string(1, c);
    }
    if (c != '{') return {};
    ++at_;
    const int64_t least = scan_count();
    int64_t most = least;
    if (has(",")) {
      ++at_;
      most = has("}") ? -1 : scan_count();
    }
    if (!has("}")) refuse("an incomplete quantifier", "{n}, {n,} or {n,m}");
    ++at_;
    if (most >= 0 && most < least) refuse(fmt::format("{{{},{}}}", least, most), "limits in ascending order");
    out.quantifier = std::array<int64_t, 2>{least, most};
    skip_lazy();
    return most < 0 ? fmt::format("{{{},}}", least) : fmt::format("{{{},{}}}", least, most);
  }

  int64_t scan_count() {
    const size_t begin = at_;
    int64_t value = 0;
    while (at_ < regex_.size() && regex_[at_] >= '0' && regex_[at_] <= '9' && value <= most_repetitions)
      value = value * 10 + (regex_[at_++] - '0');
    if (at_ == begin) refuse("an incomplete quantifier", "{n}, {n,} or {n,m}");
    if (value > most_repetitions) refuse("a quantifier", fmt::format("at most {} repetitions", most_repetitions));
    return value;
  }

  // A lazy quantifier matches the same texts as a whole. Two quantifiers in a row mean different things in different
  // dialects.
  void skip_lazy() {
    if (has("?")) ++at_;
    if (has("*") || has("+") || has("?") || has("{")) refuse("two quantifiers in a row", "one");
  }

  std::string_view regex_;
  bool in_json_;
  std::string where_;
  size_t at_ = 0;
};

std::string with_length(const Alternative& one, std::optional<int64_t> min_length, std::optional<int64_t> max_length,
                        const std::string& where) {
  const bool is_one_set = one.atoms == 1 && one.from_start && one.to_end && one.quantifier && one.last_atom[0] != '(';
  if (!is_one_set) {
    throw Error(ErrorCode::usage, where, "a pattern together with minLength or maxLength",
                "one of them, or the pattern of one repeated character set ('^[a-z]+$')");
  }
  const int64_t least = std::max((*one.quantifier)[0], min_length.value_or(0));
  int64_t most = (*one.quantifier)[1];
  if (max_length) most = most < 0 ? *max_length : std::min(most, *max_length);
  if (most >= 0 && most < least)
    throw Error(ErrorCode::usage, where, "lengths that no string has", "a satisfiable schema");
  return one.last_atom + (most < 0 ? fmt::format("{{{},}}", least) : fmt::format("{{{},{}}}", least, most));
}

}  // namespace

void check_regex(std::string_view regex, const std::string& where) {
  (void)Scanner(regex, false, where).alternatives();
}

std::string string_pattern(std::string_view pattern, std::optional<int64_t> min_length,
                           std::optional<int64_t> max_length, const std::string& where) {
  std::string out;
  const std::vector<Alternative> alternatives = Scanner(pattern, true, where).alternatives();
  const bool has_length = min_length.value_or(0) > 0 || max_length.has_value();
  for (const Alternative& one : alternatives) {
    if (!out.empty()) out += '|';
    out += '(';
    if (!one.from_start) out += any_characters;
    out += has_length ? with_length(one, min_length, max_length, where) : one.text;
    if (!one.to_end) out += any_characters;
    out += ')';
  }
  return out;
}

std::string exact_hex_escapes(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdefABCDEF";
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    out += text[at];
    if (text[at] != '\\' || at + 1 == text.size()) continue;
    const std::string_view hex = text.substr(at + 1).starts_with('x') ? text.substr(at + 2).substr(0, 2) : "";
    const bool is_exact = hex.size() == 2 && hex.find_first_not_of(digits) == std::string_view::npos;
    out += is_exact ? "u00" : text.substr(at + 1, 1);
    ++at;
  }
  return out;
}

std::string length_pattern(std::optional<int64_t> min_length, std::optional<int64_t> max_length) {
  const int64_t least = min_length.value_or(0);
  return max_length ? fmt::format(".{{{},{}}}", least, *max_length) : fmt::format(".{{{},}}", least);
}

std::optional<std::string> literal_pattern(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (is_escaped_in_json(c)) return std::nullopt;
    const size_t size = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
    uint32_t code = size == 1 ? c : c & (0xFFu >> (size + 1));
    for (size_t i = 1; i < size && at + i < text.size(); ++i)
      code = code << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3Fu);
    out += fmt::format("\\u{{{:x}}}", code);
    at += size;
  }
  return out;
}

std::optional<std::string> format_pattern(std::string_view format) {
  // Days that exist: months of 31, of 30, February, and its 29th in years divisible by 4 but not by 100, or by 400.
  constexpr std::string_view date =
      "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
      ")"
      "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
  constexpr std::string_view time =
      "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
  constexpr std::string_view byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  constexpr std::string_view label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  constexpr std::string_view group = "[0-9A-Fa-f]{1,4}";
  constexpr std::string_view url_character = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
  if (format == "date") return std::string(date);
  if (format == "time") return std::string(time);
  if (format == "date-time") return fmt::format("{}T{}", date, time);
  if (format == "duration") {
    return "P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-"
           "9]+S)?"
           "|[0-9]+S))?|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))";
  }
  if (format == "email") {
    constexpr std::string_view atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
    return fmt::format("{0}(\\.{0})*@{1}(\\.{1})*", atom, label);
  }
  if (format == "hostname") return fmt::format("{0}(\\.{0}){{0,3}}", label);
  if (format == "ipv4") return fmt::format("({0}\\.){{3}}{0}", byte);
  if (format == "ipv6") {
    std::string out = fmt::format("({0}:){{7}}{0}|({0}:){{1,7}}:|:(:{0}){{1,7}}", group);
    for (int before = 1; before <= 6; ++before) {
      const int after = 7 - before;
      out += fmt::format("|({0}:){{{1}}}(:{0}){{1,{2}}}", group, before, after);
    }
    return out + "|::";
  }
  if (format == "uri") {
    return fmt::format(
        "[A-Za-z][A-Za-z0-9+.-]*:(//{0}(:[0-9]{{1,5}})?(/{1}*)*|/?{1}+(/{1}*)*)(\\?({1}|[/?])*)?(#({1}|[/?])*)?",
        fmt::format("{0}(\\.{0})*", label), url_character);
  }
  if (format == "uuid") return "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}";
  return std::nullopt;
}

}  // namespace tandem::grammar
