// Argument values of tool calls: the model writes them as text, the client gets JSON of the types that the tool's
// schema allows (spec/frontend.md C.8, "Typing of values").
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "chat/json.h"

namespace tandem::chat {

// A set of JSON types, one bit each; `number` implies `integer`. Empty: the schema says nothing.
class JsonTypes {
 public:
  enum Bit : uint8_t { null = 1, boolean = 2, object = 4, array = 8, integer = 16, number = 32, string = 64 };

  JsonTypes() = default;
  explicit JsonTypes(uint8_t bits) : bits_(bits) {}

  bool empty() const { return bits_ == 0; }
  bool has(Bit bit) const { return (bits_ & bit) != 0; }
  bool only_string() const { return bits_ == string; }
  JsonTypes with(JsonTypes other) const { return JsonTypes(static_cast<uint8_t>(bits_ | other.bits_)); }
  // The types that both allow; a set that says nothing allows all.
  JsonTypes both(JsonTypes other) const;

  bool operator==(const JsonTypes&) const = default;

 private:
  uint8_t bits_ = 0;
};

// The types that a JSON schema allows. Read are type, const, enum, $ref within `root`, anyOf, oneOf and allOf; other
// keywords do not narrow the set. Chains of references end after 16 steps, beyond which nothing is known.
JsonTypes schema_types(const JsonValue& schema, const JsonValue& root);

// JSON text of an argument whose raw text is `text` (valid UTF-8): the text itself as a string, or the value that it
// spells where the types ask for one. A text that does not spell an allowed value stays a string: the client validates.
std::string typed_value(std::string_view text, JsonTypes types);

// The offered tools: which names there are, and what their arguments may be. Immutable, so threads may share it.
class ToolSchemas {
 public:
  ToolSchemas() = default;
  // JSON texts as in Conversation::tools. Throws Error(usage) if one is not JSON.
  explicit ToolSchemas(const std::vector<std::string>& tools);

  bool empty() const { return parameters_.empty(); }
  bool offers(std::string_view name) const { return parameters_of(name) != nullptr; }
  // Types of the argument `key` of the tool `name` (by its exact name, else without regard to case). Empty: unknown.
  JsonTypes types_of(std::string_view name, std::string_view key) const;

 private:
  const JsonValue* parameters_of(std::string_view name) const;

  std::map<std::string, JsonValue, std::less<>> parameters_;
  std::map<std::string, std::string, std::less<>> names_by_lower_case_;
};

}  // namespace tandem::chat
