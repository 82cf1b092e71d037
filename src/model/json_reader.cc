// The checks of json_reader.h over nlohmann-json.
#include "model/json_reader.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace tandem::model {
namespace {

using nlohmann::json;

constexpr size_t deepest_nesting = 128;

// Follows the parser: one set of keys for every open object, an empty one for every open array.
class NestingCheck {
 public:
  explicit NestingCheck(const std::string& where) : where_(where) {}

  void see(json::parse_event_t event, const json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (open_.size() == deepest_nesting) {
          throw Error(ErrorCode::bad_file, where_, fmt::format("nesting deeper than {} levels", deepest_nesting),
                      fmt::format("at most {} levels", deepest_nesting));
        }
        open_.emplace_back();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end: open_.pop_back(); break;
      case json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!open_.back().insert(key).second) {
          throw Error(ErrorCode::bad_file, where_ + ": " + printable(key), "key given twice", "every key once");
        }
        break;
      }
      case json::parse_event_t::value: break;
    }
  }

 private:
  const std::string& where_;
  std::vector<std::set<std::string>> open_;
};

std::string describe(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  return printable(value.dump());
}

bool is_integer(const json& value) { return value.is_number_integer(); }

bool in_range(const json& value, IntegerRange range) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  const auto number = value.get<int64_t>();
  return number >= range.least && number <= range.most;
}

std::string range_text(IntegerRange range) {
  if (range.most == std::numeric_limits<int64_t>::max()) return fmt::format("an integer of at least {}", range.least);
  if (range.least == range.most) return fmt::format("{}", range.least);
  return fmt::format("an integer in {}..{}", range.least, range.most);
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr size_t longest = 120;
  std::string line;
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return text.size() > longest ? line + "..." : line;
}

JsonDocument::JsonDocument(std::string_view text, const std::string& where) : where_(where) {
  if (const size_t at = text.find('\0'); at != std::string_view::npos) {  // the parser takes it for the end
    throw Error(ErrorCode::bad_file, where, fmt::format("not valid JSON at byte {}", at + 1), "a JSON object");
  }
  NestingCheck check(where);
  const auto see = [&check](int, json::parse_event_t event, json& parsed) {
    check.see(event, parsed);
    return true;
  };
  try {
    root_ = std::make_unique<json>(json::parse(text, see));
  } catch (const json::parse_error& error) {
    throw Error(ErrorCode::bad_file, where, fmt::format("not valid JSON at byte {}", error.byte), "a JSON object");
  } catch (const json::exception& error) {
    throw Error(ErrorCode::bad_file, where, printable(error.what()), "a JSON object");
  }
  if (!root_->is_object()) throw Error(ErrorCode::bad_file, where, "found " + describe(*root_), "a JSON object");
}

JsonDocument::~JsonDocument() = default;

JsonObject JsonDocument::root() const { return {root_.get(), where_, ""}; }

std::string JsonObject::place(std::string_view key) const { return fmt::format("{}: {}{}", where_, path_, key); }

bool JsonObject::has(std::string_view key) const {
  const auto found = object_->find(key);
  return found != object_->end() && !found->is_null();
}

const json& JsonObject::value(std::string_view key, const char* expected) const {
  const auto found = object_->find(key);
  if (found == object_->end()) throw Error(ErrorCode::bad_file, place(key), "missing", expected);
  return *found;
}

void JsonObject::refuse(std::string_view key, const std::string& expected, std::string found) const {
  if (found.empty()) {
    const auto value = object_->find(key);
    found = value == object_->end() ? "missing" : "found " + describe(*value);
  }
  throw Error(ErrorCode::bad_file, place(key), std::move(found), expected);
}

int64_t JsonObject::integer(std::string_view key, IntegerRange range) const {
  const json& found = value(key, "an integer");
  if (!is_integer(found) || !in_range(found, range)) refuse(key, range_text(range));
  return found.get<int64_t>();
}

double JsonObject::number(std::string_view key) const {
  const json& found = value(key, "a number");
  if (!found.is_number()) refuse(key, "a number");
  return found.get<double>();
}

bool JsonObject::boolean(std::string_view key) const {
  const json& found = value(key, "true or false");
  if (!found.is_boolean()) refuse(key, "true or false");
  return found.get<bool>();
}

std::string JsonObject::text(std::string_view key) const {
  const json& found = value(key, "a string");
  if (!found.is_string()) refuse(key, "a string");
  return found.get<std::string>();
}

JsonObject JsonObject::object(std::string_view key) const {
  const json& found = value(key, "an object");
  if (!found.is_object()) refuse(key, "an object");
  return {&found, where_, fmt::format("{}{}.", path_, key)};
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> keys;
  for (const auto& [name, member] : object_->items()) keys.push_back(name);
  return keys;
}

bool JsonObject::is_array(std::string_view key) const {
  const auto found = object_->find(key);
  return found != object_->end() && found->is_array();
}

std::vector<int64_t> JsonObject::integers(std::string_view key, IntegerRange range) const {
  const json& found = value(key, "an array of integers");
  if (!found.is_array()) refuse(key, "an array of integers");
  std::vector<int64_t> result;
  for (const json& element : found) {
    if (!is_integer(element) || !in_range(element, range)) {
      refuse(fmt::format("{}[{}]", key, result.size()), range_text(range), "found " + describe(element));
    }
    result.push_back(element.get<int64_t>());
  }
  return result;
}

std::vector<std::string> JsonObject::texts(std::string_view key) const {
  const json& found = value(key, "an array of strings");
  if (!found.is_array()) refuse(key, "an array of strings");
  std::vector<std::string> result;
  for (const json& element : found) {
    if (!element.is_string()) {
      refuse(fmt::format("{}[{}]", key, result.size()), "a string", "found " + describe(element));
    }
    result.push_back(element.get<std::string>());
  }
  return result;
}

std::vector<std::pair<std::string, std::string>> JsonObject::text_members(std::string_view key) const {
  const json& found = value(key, "an object of strings");
  if (!found.is_object()) refuse(key, "an object of strings");
  std::vector<std::pair<std::string, std::string>> result;
  for (const auto& [name, member] : found.items()) {
    if (!member.is_string()) {
      refuse(fmt::format("{}.{}", key, printable(name)), "a string", "found " + describe(member));
    }
    result.emplace_back(name, member.get<std::string>());
  }
  return result;
}

std::optional<int64_t> JsonObject::optional_integer(std::string_view key, IntegerRange range) const {
  if (!has(key)) return std::nullopt;
  return integer(key, range);
}

std::optional<bool> JsonObject::optional_boolean(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return boolean(key);
}

std::optional<std::string> JsonObject::optional_text(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return text(key);
}

std::optional<double> JsonObject::optional_number(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return number(key);
}

}  // namespace tandem::model
