// Typed, checked access to a JSON document such as config.json: every wrong type, missing key and value out of range
// becomes an Error that names the key. Keeps the heavy JSON header in one source file.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::model {

struct IntegerRange {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
};

// A JSON object inside a document; valid as long as the document.
class JsonObject {
 public:
  JsonObject(const nlohmann::json* object, std::string where, std::string path)
      : object_(object), where_(std::move(where)), path_(std::move(path)) {}

  bool has(std::string_view key) const;  // present and not null

  // Each throws Error(bad_file) unless the key is there with that type; 1.0 and true are no integers, an integer is a
  // number.
  int64_t integer(std::string_view key, IntegerRange range) const;
  double number(std::string_view key) const;
  bool boolean(std::string_view key) const;
  std::string text(std::string_view key) const;
  JsonObject object(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key, IntegerRange range) const;
  std::vector<std::string> texts(std::string_view key) const;
  std::vector<std::pair<std::string, std::string>> text_members(std::string_view key) const;  // {"a": "b", …}, sorted

  bool is_array(std::string_view key) const;
  std::vector<std::string> keys() const;  // of this object, sorted

  // The key may be absent or null; if it is there it must have the type.
  std::optional<int64_t> optional_integer(std::string_view key, IntegerRange range) const;
  std::optional<bool> optional_boolean(std::string_view key) const;
  std::optional<std::string> optional_text(std::string_view key) const;
  std::optional<double> optional_number(std::string_view key) const;

  // Throws Error(bad_file) that names the key, with its value as what was found unless `found` says otherwise.
  [[noreturn]] void refuse(std::string_view key, const std::string& expected, std::string found = {}) const;

 private:
  const nlohmann::json& value(std::string_view key, const char* expected) const;
  std::string place(std::string_view key) const;

  const nlohmann::json* object_;
  std::string where_, path_;
};

class JsonDocument {
 public:
  // Parses UTF-8 JSON whose root is an object. Throws Error(bad_file) for anything else, for a key given twice in one
  // object and for nesting beyond 128 levels. `where` names the file in errors.
  JsonDocument(std::string_view text, const std::string& where);
  ~JsonDocument();
  JsonObject root() const;

 private:
  std::unique_ptr<nlohmann::json> root_;
  std::string where_;
};

// `text` on one line and short enough for a message.
std::string printable(std::string_view text);

}  // namespace tandem::model
