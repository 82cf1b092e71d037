// Typed access to the fields of a request body, with errors that name the path.
#include "chat/field.h"

#include <fmt/core.h>

#include "base/error.h"

namespace tandem::chat {
namespace {

std::string described(const JsonValue& value) {
  if (value.is_null()) return "found null";
  if (const bool* boolean = value.boolean()) return *boolean ? "found true" : "found false";
  if (value.number() != nullptr) return "found a number";
  if (value.string() != nullptr) return "found a string";
  return value.array() != nullptr ? "found a list" : "found an object";
}

}  // namespace

std::string quoted(std::string_view text) {
  constexpr std::size_t kMost = 64;
  const bool cut = text.size() > kMost;
  if (cut) {
    std::size_t end = kMost;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    text = text.substr(0, end);
  }
  std::string out;
  print_python_json(text, out);
  return cut ? out + "…" : out;
}

std::string Field::child(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

std::optional<Field> Field::get(std::string_view key) const {
  const JsonValue* found = value_->find(key);
  if (found == nullptr || found->is_null()) return std::nullopt;
  return Field(*found, child(key));
}

Field Field::require(std::string_view key, std::string_view expected) const {
  const JsonValue* found = value_->find(key);
  if (found == nullptr) throw Error(ErrorCode::usage, child(key), "missing", std::string(expected));
  return {*found, child(key)};
}

Field Field::at(std::size_t index) const { return {(*value_->array())[index], fmt::format("{}[{}]", path_, index)}; }

const std::string& Field::string() const {
  if (value_->string() == nullptr) wrong_type("a string");
  return *value_->string();
}

bool Field::boolean() const {
  if (value_->boolean() == nullptr) wrong_type("true or false");
  return *value_->boolean();
}

std::size_t Field::list_size() const {
  if (value_->array() == nullptr) wrong_type("a list");
  return value_->array()->size();
}

const Field& Field::object() const {
  if (value_->object() == nullptr) wrong_type("an object");
  return *this;
}

void Field::wrong_type(std::string_view expected) const {
  throw Error(ErrorCode::usage, path_.empty() ? "body" : path_, described(*value_), std::string(expected));
}

void Field::unexpected(std::string_view expected) const {
  throw Error(ErrorCode::usage, path_, "found " + chat::quoted(string()), std::string(expected));
}

}  // namespace tandem::chat
