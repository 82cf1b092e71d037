// A JSON value together with the path that leads to it, so that every complaint names the field of the request.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/json.h"

namespace tandem::chat {

// Values are only described, never quoted, in errors: they may be prompts. Exceptions are short words of a fixed
// vocabulary (roles, types, efforts), which `unexpected` quotes.
class Field {
 public:
  Field(const JsonValue& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const JsonValue& value() const { return *value_; }
  const std::string& path() const { return path_; }

  bool has(std::string_view key) const { return value_->find(key) != nullptr; }
  std::optional<Field> get(std::string_view key) const;  // none: absent or null
  Field require(std::string_view key, std::string_view expected) const;
  Field at(std::size_t index) const;  // of a list

  // The value as this type; throws Error(usage) that names the path otherwise.
  const std::string& string() const;
  bool boolean() const;
  std::size_t list_size() const;
  const Field& object() const;

  [[noreturn]] void wrong_type(std::string_view expected) const;
  [[noreturn]] void unexpected(std::string_view expected) const;  // a string with a value that is not allowed

 private:
  std::string child(std::string_view key) const;

  const JsonValue* value_;
  std::string path_;
};

// A string in quotes for an error message, cut after 64 bytes at the border of a character.
std::string quoted(std::string_view text);

}  // namespace tandem::chat
