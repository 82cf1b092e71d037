// From the alternatives of a prepared schema to the raw text of an argument.
#include "grammar/argument_form.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "grammar/schema_node.h"

namespace tandem::grammar {

namespace {

// A regular expression of this text alone. Signs are written as code points, so that none of them means anything.
std::string text_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = byte >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    out += is_plain ? std::string(1, c) : fmt::format("\\u{{{:x}}}", byte);
  }
  return out;
}

// What the alternatives of a schema allow, sorted by how they are written.
class Alternatives {
 public:
  explicit Alternatives(const JsonValue& prepared) : definitions_(prepared.find("$defs")) { add(prepared); }

  bool is_any = false;         // every text is a value: some string is free
  bool has_structure = false;  // objects or arrays
  bool has_null = false;
  std::vector<std::string> literals;  // strings
  std::vector<std::string> patterns;  // of strings

 private:
  void add(const JsonValue& schema) {
    if (const JsonValue* list = schema.find("anyOf")) {
      for (const JsonValue& one : *list->array()) add(one);
    } else if (const JsonValue* reference = schema.find("$ref")) {
      // prepare_schema() has seen to it that these lead somewhere and not back to themselves.
      add(*definitions_->find(reference->string()->substr(std::string_view("#/$defs/").size())));
    } else if (const JsonValue* values = schema.find("enum")) {
      for (const JsonValue& value : *values->array()) add_value(value);
    } else if (const JsonValue* type = schema.find("type")) {
      add_type(*type->string(), schema.find("pattern"));
    } else {
      is_any = true;
    }
  }

  void add_value(const JsonValue& value) {
    if (value.string() != nullptr) literals.push_back(*value.string());
    has_null = has_null || value.is_null();
    has_structure = has_structure || value.array() != nullptr || value.object() != nullptr;
  }

  void add_type(std::string_view type, const JsonValue* pattern) {
    if (type == "string" && pattern != nullptr) {
      patterns.push_back(*pattern->string());
    } else if (type == "string") {
      is_any = true;
    }
    has_null = has_null || type == "null";
    has_structure = has_structure || type == "array" || type == "object";
  }

  const JsonValue* definitions_;
};

}  // namespace

ArgumentForm argument_form(const JsonValue& document, const std::string& place, const SchemaOptions& options,
                           std::vector<std::string>& ignored) {
  PreparedSchema prepared = prepare_schema(document, place, options);
  for (std::string& one : prepared.ignored) ignored.push_back(std::move(one));
  Alternatives found(prepared.value);
  if (found.is_any) return {};
  if (found.literals.empty() && found.patterns.empty())
    return {{}, Source{Language::json_schema, std::move(prepared.text)}};
  if (found.has_structure)
    throw Error(ErrorCode::usage, place, "strings of one form beside objects or arrays",
                "one of them, or free strings");
  if (found.has_null) found.literals.emplace_back("null");
  if (found.patterns.empty()) return {std::move(found.literals), std::nullopt};
  std::string regex;
  for (const std::string& one : found.patterns) regex += fmt::format("{}({})", regex.empty() ? "" : "|", one);
  for (const std::string& one : found.literals) regex += fmt::format("|({})", text_pattern(one));
  return {{}, Source{Language::regex, std::move(regex)}};
}

std::string pointer_step(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else if (c == '%') {
      out += "%25";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace tandem::grammar
