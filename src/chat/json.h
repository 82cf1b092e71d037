// JSON the way the prompt needs it: key order, the spelling of integers and the integer/float distinction survive, and
// printing is byte for byte Python's json.dumps(ensure_ascii=False) (spec/frontend.md C.3). A general JSON tree would
// either sort the keys or look them up in quadratic time, and would forget how a large integer was written.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tandem::chat {

inline constexpr std::size_t kMaxJsonNesting = 128;  // containers inside containers; deeper text is refused

struct JsonMember;

struct JsonValue {
  struct Number {
    std::string spelling;  // as Python prints it
    bool integer = false;
  };
  using Array = std::vector<JsonValue>;
  using Object = std::vector<JsonMember>;  // received order; keys are unique

  std::variant<std::nullptr_t, bool, Number, std::string, Array, Object> data;  // null unless set

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(data); }
  const bool* boolean() const { return std::get_if<bool>(&data); }
  const Number* number() const { return std::get_if<Number>(&data); }
  const std::string* string() const { return std::get_if<std::string>(&data); }
  const Array* array() const { return std::get_if<Array>(&data); }
  const Object* object() const { return std::get_if<Object>(&data); }

  const JsonValue* find(std::string_view key) const;  // null: no object or no such key
  bool truthy() const;                                // Python's bool(value)
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

// Reads one JSON text (RFC 8259: no NaN or Infinity, no comments). Of equal keys the last value wins and the first
// place stays, as in Python. Throws Error(usage) with this `where` for anything that is not JSON, is not valid UTF-8,
// holds a lone surrogate, a number beyond the range of a double, or nests deeper than kMaxJsonNesting.
JsonValue parse_json(std::string_view text, const std::string& where);

// Appends the value as json.dumps(value, ensure_ascii=False) prints it.
void print_python_json(const JsonValue& value, std::string& out);
void print_python_json(std::string_view string, std::string& out);  // one string with its quotes

// Python's repr of a finite double: the shortest digits that read back equal, exponent form below 1e-4 and from 1e16.
std::string python_float(double value);

}  // namespace tandem::chat
