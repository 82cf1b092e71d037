// JSON schemas before they become grammars: every keyword is either enforced or refused by name (spec/frontend.md E.2;
// decisions.md, "unsupported schema keywords"). What xgrammar would ignore or mix up is put into a form here that it
// gets right: one type a schema, no siblings beside anyOf, no allOf, strings by one pattern.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/json.h"

namespace tandem::grammar {

struct SchemaOptions {
  // JSON Schema's own reading: an object that does not mention additionalProperties may have any, a schema without
  // `type` allows every type that its keywords do not speak of. Otherwise what models are asked for: undeclared keys
  // are forbidden where some are declared, and "properties" alone means an object.
  bool open = false;
  bool ignore_unsupported = false;  // leave such keywords out and report them
};

struct PreparedSchema {
  std::string text;                  // for Language::json_schema
  chat::JsonValue value;             // the same
  std::vector<std::string> ignored;  // "#/properties/a: keyword 'uniqueItems'", if ignore_unsupported
};

// Limits of spec/frontend.md E.2.
inline constexpr size_t most_schema_bytes = 256 * 1024;
inline constexpr int most_schema_depth = 64, most_enum_values = 10'000;

// What found() says of a schema like `false`.
inline constexpr std::string_view satisfied_by_nothing = "a schema that no value satisfies";

// Throws Error(usage): where() is a JSON pointer into the schema ("#/properties/a"), found() names the keyword.
PreparedSchema prepare_schema(std::string_view schema, const SchemaOptions& options);
PreparedSchema prepare_schema(const chat::JsonValue& schema, const SchemaOptions& options);
// Of a schema inside `document`, at the JSON pointer `place` ("#/properties/a"): its references lead into the document.
PreparedSchema prepare_schema(const chat::JsonValue& document, const std::string& place, const SchemaOptions& options);

}  // namespace tandem::grammar
