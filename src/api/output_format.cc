// From fields to one form.
#include "api/output_format.h"

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "api/errors.h"

namespace tandem::api {

namespace {

using chat::JsonValue;
using Kind = OutputFormat::Kind;

constexpr size_t most_listed_choices = 1000, most_choice_bytes = 256 * 1024, most_text_bytes = 256 * 1024;

const JsonValue& required_member(const JsonValue& object, std::string_view key, const std::string& field) {
  const JsonValue* value = object.find(key);
  if (value == nullptr || value->is_null()) throw invalid_field(field, "missing");
  return *value;
}

OutputFormat text_format(Kind kind, const JsonValue& value, const std::string& field) {
  if (value.string() == nullptr || value.string()->empty())
    throw invalid_field(field, "expected a string that is not empty");
  if (value.string()->size() > most_text_bytes)
    throw invalid_field(field, fmt::format("{} bytes; expected at most {}", value.string()->size(), most_text_bytes));
  return {kind, *value.string(), field};
}

// As a literal of an EBNF grammar.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

OutputFormat choice_format(const JsonValue& value, const std::string& field) {
  const auto* list = value.array();
  if (list == nullptr || list->empty() || list->size() > most_listed_choices)
    throw invalid_field(field, fmt::format("expected a list of 1 to {} strings", most_listed_choices));
  std::string rules = "root ::= ";
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string* one = (*list)[i].string();
    if (one == nullptr || one->empty())
      throw invalid_field(fmt::format("{}[{}]", field, i), "expected a string that is not empty");
    if (i > 0) rules += " | ";
    rules += quoted(*one);
    if (rules.size() > most_choice_bytes)
      throw invalid_field(field, fmt::format("more than {} bytes in all", most_choice_bytes));
  }
  return {Kind::grammar, rules + "\n", field};
}

// vLLM takes a schema as an object or as its text.
OutputFormat schema_format(const JsonValue& value, const std::string& field) {
  if (value.string() == nullptr) return json_schema_format(value, field);
  return text_format(Kind::json_schema, value, field);
}

OutputFormat response_format(const JsonValue& value) {
  const std::string field = "response_format";
  if (value.object() == nullptr) throw invalid_field(field, "expected an object");
  const JsonValue& type = required_member(value, "type", field + ".type");
  if (type.string() == nullptr) throw invalid_field(field + ".type", "expected a string");
  if (*type.string() == "text") return {};
  if (*type.string() == "json_object") return json_object_format(field);
  if (*type.string() == "json_schema") {
    const JsonValue& described = required_member(value, "json_schema", field + ".json_schema");
    if (described.object() == nullptr) throw invalid_field(field + ".json_schema", "expected an object");
    const JsonValue* schema = described.find("schema");
    if (schema == nullptr || schema->is_null()) return {Kind::json_schema, "{}", field};
    return json_schema_format(*schema, field + ".json_schema.schema");
  }
  if (*type.string() == "regex")
    return text_format(Kind::regex, required_member(value, "regex", field + ".regex"), field + ".regex");
  if (*type.string() == "grammar")
    return text_format(Kind::grammar, required_member(value, "grammar", field + ".grammar"), field + ".grammar");
  if (*type.string() == "structural_tag") throw not_supported(field, "type 'structural_tag'");
  throw invalid_field(field + ".type", "expected text, json_object, json_schema, regex or grammar");
}

OutputFormat structured_outputs(const JsonValue& value) {
  const std::string field = "structured_outputs";
  if (value.object() == nullptr) throw invalid_field(field, "expected an object");
  std::optional<OutputFormat> format;
  const auto set = [&](OutputFormat one) {
    if (format) throw invalid_field(field, fmt::format("both {} and {}; expected one", format->field, one.field));
    format = std::move(one);
  };
  for (const chat::JsonMember& member : *value.object()) {
    const std::string name = fmt::format("{}.{}", field, member.key.substr(0, 64));
    const JsonValue& one = member.value;
    const bool is_true = one.boolean() != nullptr && *one.boolean();
    if (one.is_null()) continue;
    if (member.key == "json") {
      set(schema_format(one, name));
    } else if (member.key == "regex") {
      set(text_format(Kind::regex, one, name));
    } else if (member.key == "choice") {
      set(choice_format(one, name));
    } else if (member.key == "grammar") {
      set(text_format(Kind::grammar, one, name));
    } else if (member.key == "json_object") {
      if (is_true) set(json_object_format(name));
    } else if (member.key == "disable_additional_properties") {
      if (one.boolean() == nullptr) throw invalid_field(name, "expected true or false");  // what we do anyway
    } else if (member.key == "structural_tag" || member.key == "whitespace_pattern" || is_true) {
      throw not_supported(name, "this field");
    } else if (member.key != "disable_any_whitespace" && member.key != "disable_fallback") {
      throw invalid_field(
          name, "expected json, regex, choice, grammar or json_object");  // a typo must not lose the constraint
    }
  }
  if (!format) throw invalid_field(field, "expected one of json, regex, choice, grammar, json_object");
  return *format;
}

struct FieldAlias {
  std::string_view field;
  Kind kind;
  bool may_be_empty = false;  // and asks for nothing then
};
constexpr std::array field_aliases = std::to_array<FieldAlias>({{"guided_json", Kind::json_schema},
                                                                {"json_schema", Kind::json_schema, true},
                                                                {"guided_regex", Kind::regex},
                                                                {"regex", Kind::regex},
                                                                {"guided_grammar", Kind::grammar},
                                                                {"grammar", Kind::grammar, true},
                                                                {"ebnf", Kind::grammar}});

// llama-server's clients send grammar: ""; elsewhere an empty text is a constraint that got lost.
bool asks(const JsonBody& body, const FieldAlias& alias) {
  return alias.may_be_empty ? body.is_set(alias.field) : body.has(alias.field);
}

}  // namespace

OutputFormat json_object_format(std::string field) {
  return {Kind::json_schema, R"({"type":"object"})", std::move(field)};
}

OutputFormat json_schema_format(const JsonValue& schema, std::string field) {
  if (schema.object() == nullptr && schema.boolean() == nullptr) throw invalid_field(field, "expected an object");
  std::string text;
  chat::print_python_json(schema, text);
  return {Kind::json_schema, std::move(text), std::move(field)};
}

OutputFormat read_output_format(const JsonBody& body, std::string_view text) {
  bool is_asked = body.has("response_format") || body.has("structured_outputs") || body.has("guided_choice");
  for (const FieldAlias& alias : field_aliases) is_asked = is_asked || asks(body, alias);
  if (!is_asked) return {};
  const JsonValue root = chat::parse_json(text, "body");
  std::vector<OutputFormat> found;
  const auto add = [&](OutputFormat one) {
    if (!one.is_free()) found.push_back(std::move(one));
  };
  if (body.has("response_format")) add(response_format(*root.find("response_format")));
  if (body.has("structured_outputs")) add(structured_outputs(*root.find("structured_outputs")));
  if (body.has("guided_choice")) add(choice_format(*root.find("guided_choice"), "guided_choice"));
  for (const FieldAlias& alias : field_aliases) {
    if (!asks(body, alias)) continue;
    const std::string field(alias.field);
    const JsonValue& value = *root.find(alias.field);
    add(alias.kind == Kind::json_schema ? schema_format(value, field) : text_format(alias.kind, value, field));
  }
  if (found.size() > 1)
    throw invalid_field(found[1].field, fmt::format("two forms of the reply at once: {} and this", found[0].field));
  return found.empty() ? OutputFormat{} : std::move(found.front());
}

}  // namespace tandem::api
