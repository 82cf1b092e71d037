// Reading JSON through nlohmann's SAX interface (whose parser keeps no recursion) and printing it like Python.
#include "chat/json.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <system_error>
#include <unordered_map>

#include "base/error.h"
#include "chat/render.h"

namespace tandem::chat {
namespace {

// Objects up to this many members are searched in place; larger ones get a hash index, so that a hostile object with
// millions of keys costs linear time.
constexpr std::size_t kSmallObject = 16;

class TreeBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return add({nullptr}); }
  bool boolean(bool value) override { return add({value}); }
  bool number_integer(number_integer_t value) override { return add({JsonValue::Number{std::to_string(value), true}}); }
  bool number_unsigned(number_unsigned_t value) override {
    return add({JsonValue::Number{std::to_string(value), true}});
  }
  bool number_float(number_float_t value, const string_t& spelling) override {
    // Integers beyond 64 bits arrive here as well; they keep their spelling.
    if (spelling.find_first_of(".eE") == string_t::npos) return add({JsonValue::Number{spelling, true}});
    return add({JsonValue::Number{python_float(value), false}});
  }
  bool string(string_t& value) override { return add({std::move(value)}); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open({JsonValue::Object{}}); }
  bool start_array(std::size_t) override { return open({JsonValue::Array{}}); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    frames_.back().key = std::move(value);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // The library's message quotes the text around the error, which may be a prompt; only its kind is kept.
    const std::string_view what = error.what();
    const auto says = [what](std::string_view words) { return what.find(words) != std::string_view::npos; };
    const char* kind = "is not valid JSON";
    if (says("UTF-8")) kind = "is not valid UTF-8";
    if (says("surrogate")) kind = "holds a lone surrogate";
    if (says("out of range") || says("overflow")) kind = "holds a number out of range";
    problem_ = fmt::format("{} at byte {}", kind, position);
    return false;
  }

  const std::string& problem() const { return problem_; }
  JsonValue take() { return std::move(root_); }

 private:
  struct Frame {
    JsonValue container;
    std::string key;
    std::unordered_map<std::string, std::size_t> index;
  };

  bool open(JsonValue container) {
    if (frames_.size() == kMaxJsonNesting) {
      problem_ = fmt::format("nests deeper than {} levels", kMaxJsonNesting);
      return false;
    }
    frames_.push_back({std::move(container), {}, {}});
    return true;
  }

  bool close() {
    JsonValue value = std::move(frames_.back().container);
    frames_.pop_back();
    return add(std::move(value));
  }

  bool add(JsonValue value) {
    if (frames_.empty()) {
      root_ = std::move(value);
    } else if (auto* array = std::get_if<JsonValue::Array>(&frames_.back().container.data)) {
      array->push_back(std::move(value));
    } else {
      place(frames_.back(), std::move(value));
    }
    return true;
  }

  static void place(Frame& frame, JsonValue value) {
    auto& members = std::get<JsonValue::Object>(frame.container.data);
    if (members.size() < kSmallObject) {
      for (JsonMember& member : members) {
        if (member.key == frame.key) {
          member.value = std::move(value);
          return;
        }
      }
    } else {
      if (frame.index.empty()) {
        for (std::size_t i = 0; i < members.size(); ++i) frame.index.emplace(members[i].key, i);
      }
      const auto [found, is_new] = frame.index.emplace(frame.key, members.size());
      if (!is_new) {
        members[found->second].value = std::move(value);
        return;
      }
    }
    members.push_back({std::move(frame.key), std::move(value)});
  }

  std::vector<Frame> frames_;
  JsonValue root_;
  std::string problem_;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  if (const Object* members = object()) {
    for (const JsonMember& member : *members) {
      if (member.key == key) return &member.value;
    }
  }
  return nullptr;
}

bool JsonValue::truthy() const {
  if (const bool* value = boolean()) return *value;
  if (const Number* value = number()) {
    // Zero in any spelling ("0", "-0.0") has no digit but 0 before an exponent.
    return value->spelling.substr(0, value->spelling.find('e')).find_first_of("123456789") != std::string::npos;
  }
  if (const std::string* value = string()) return !value->empty();
  if (const Array* value = array()) return !value->empty();
  if (const Object* value = object()) return !value->empty();
  return false;
}

JsonValue parse_json(std::string_view text, const std::string& where) {
  // The library takes a NUL for the end of the text.
  if (text.find('\0') != std::string_view::npos) {
    throw Error(ErrorCode::usage, where, "a NUL byte", "JSON text in UTF-8");
  }
  TreeBuilder builder;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    throw Error(ErrorCode::usage, where, builder.problem(), "JSON text in UTF-8");
  }
  return builder.take();
}

std::string python_float(double value) {
  std::array<char, 64> buffer;
  const auto written =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  std::string_view shortest(buffer.data(), static_cast<std::size_t>(written.ptr - buffer.data()));
  std::string out;
  if (shortest.starts_with('-')) {
    out = "-";
    shortest.remove_prefix(1);
  }
  const std::size_t mark = shortest.find('e');
  std::string digits(1, shortest[0]);
  if (mark > 2) digits += shortest.substr(2, mark - 2);
  int exponent = 0;
  const char* exponent_begin = shortest.data() + mark + (shortest[mark + 1] == '+' ? 2 : 1);
  std::from_chars(exponent_begin, shortest.data() + shortest.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', exponent < 0 ? -exponent : exponent);
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const std::size_t whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

void print_python_json(std::string_view string, std::string& out) {
  out += '"';
  for (const char c : string) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void print_python_json(const JsonValue& value, std::string& out) {
  if (value.is_null()) {
    out += "null";
  } else if (const bool* boolean = value.boolean()) {
    out += *boolean ? "true" : "false";
  } else if (const JsonValue::Number* number = value.number()) {
    out += number->spelling;
  } else if (const std::string* string = value.string()) {
    print_python_json(std::string_view(*string), out);
  } else if (const JsonValue::Array* array = value.array()) {
    out += '[';
    for (std::size_t i = 0; i < array->size(); ++i) {
      if (i > 0) out += ", ";
      print_python_json((*array)[i], out);
    }
    out += ']';
  } else {
    out += '{';
    const JsonValue::Object& members = *value.object();
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i > 0) out += ", ";
      print_python_json(std::string_view(members[i].key), out);
      out += ": ";
      print_python_json(members[i].value, out);
    }
    out += '}';
  }
}

std::string python_json(std::string_view json) {
  std::string out;
  print_python_json(parse_json(json, "JSON"), out);
  return out;
}

}  // namespace tandem::chat
