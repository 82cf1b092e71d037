// Types from schemas, and values from text.
#include "chat/tool_values.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace tandem::chat {
namespace {

constexpr int kMaxReferences = 16;
constexpr int kMaxAlternatives = 256;  // subschemas looked at for one value: references may branch

JsonTypes type_named(std::string_view name) {
  if (name == "null") return JsonTypes(JsonTypes::null);
  if (name == "boolean") return JsonTypes(JsonTypes::boolean);
  if (name == "object") return JsonTypes(JsonTypes::object);
  if (name == "array") return JsonTypes(JsonTypes::array);
  if (name == "integer") return JsonTypes(JsonTypes::integer);
  if (name == "number") return JsonTypes(JsonTypes::number | JsonTypes::integer);
  if (name == "string") return JsonTypes(JsonTypes::string);
  return {};
}

JsonTypes type_of(const JsonValue& value) {
  if (value.is_null()) return JsonTypes(JsonTypes::null);
  if (value.boolean() != nullptr) return JsonTypes(JsonTypes::boolean);
  if (value.object() != nullptr) return JsonTypes(JsonTypes::object);
  if (value.array() != nullptr) return JsonTypes(JsonTypes::array);
  if (value.string() != nullptr) return JsonTypes(JsonTypes::string);
  return JsonTypes(value.number()->integer ? JsonTypes::integer : JsonTypes::number);
}

// One step of a JSON pointer (RFC 6901) with its escapes undone.
std::string pointer_step(std::string_view step) {
  std::string out;
  for (std::size_t i = 0; i < step.size(); ++i) {
    const bool escape = step[i] == '~' && i + 1 < step.size() && (step[i + 1] == '0' || step[i + 1] == '1');
    out += escape ? (step[++i] == '0' ? '~' : '/') : step[i];
  }
  return out;
}

// What "#/$defs/x" names; null: another kind of reference, or nothing there.
const JsonValue* referenced(const JsonValue& root, std::string_view reference) {
  if (!reference.starts_with('#')) return nullptr;
  reference.remove_prefix(1);
  const JsonValue* at = &root;
  while (at != nullptr && reference.starts_with('/')) {
    reference.remove_prefix(1);
    const std::size_t end = std::min(reference.find('/'), reference.size());
    at = at->find(pointer_step(reference.substr(0, end)));
    reference.remove_prefix(end);
  }
  return reference.empty() ? at : nullptr;
}

const JsonValue::Array* list_at(const JsonValue& schema, std::string_view key) {
  const JsonValue* value = schema.find(key);
  return value != nullptr ? value->array() : nullptr;
}

// Walks the subschemas that apply to one value.
class SchemaWalk {
 public:
  explicit SchemaWalk(const JsonValue& root) : root_(root) {}

  JsonTypes types(const JsonValue& schema, int references = 0) {
    if (++visited_ > kMaxAlternatives) return {};
    JsonTypes found = own_types(schema);
    if (const JsonValue* target = target_of(schema, references)) found = found.both(types(*target, references + 1));
    for (const auto* key : {"anyOf", "oneOf"}) {
      if (const JsonValue::Array* branches = list_at(schema, key)) found = found.both(any_of(*branches, references));
    }
    if (const JsonValue::Array* parts = list_at(schema, "allOf")) {
      for (const JsonValue& part : *parts) found = found.both(types(part, references));
    }
    return found;
  }

  // The types of the property `key` of the objects that `schema` describes.
  JsonTypes property(const JsonValue& schema, std::string_view key, int references = 0) {
    if (++visited_ > kMaxAlternatives) return {};
    if (const JsonValue* properties = schema.find("properties")) {
      if (const JsonValue* value = properties->find(key)) return types(*value);
    }
    if (const JsonValue* target = target_of(schema, references)) {
      if (const JsonTypes found = property(*target, key, references + 1); !found.empty()) return found;
    }
    JsonTypes found;
    for (const auto* list : {"allOf", "anyOf", "oneOf"}) {
      const JsonValue::Array* parts = list_at(schema, list);
      if (parts == nullptr) continue;
      for (const JsonValue& part : *parts) found = found.with(property(part, key, references));
    }
    if (!found.empty()) return found;
    const JsonValue* others = schema.find("additionalProperties");
    return others != nullptr ? types(*others) : JsonTypes();
  }

 private:
  static JsonTypes own_types(const JsonValue& schema) {
    JsonTypes found;
    if (const JsonValue* type = schema.find("type")) {
      if (const std::string* name = type->string()) found = type_named(*name);
      if (const JsonValue::Array* names = type->array()) {
        for (const JsonValue& name : *names) {
          if (name.string() != nullptr) found = found.with(type_named(*name.string()));
        }
      }
    }
    if (const JsonValue* value = schema.find("const")) found = found.both(type_of(*value));
    if (const JsonValue::Array* values = list_at(schema, "enum")) {
      JsonTypes listed;
      for (const JsonValue& value : *values) listed = listed.with(type_of(value));
      found = found.both(listed);
    }
    return found;
  }

  const JsonValue* target_of(const JsonValue& schema, int references) const {
    const JsonValue* reference = schema.find("$ref");
    if (reference == nullptr || reference->string() == nullptr || references >= kMaxReferences) return nullptr;
    return referenced(root_, *reference->string());
  }

  // A branch that says nothing allows everything.
  JsonTypes any_of(const JsonValue::Array& branches, int references) {
    JsonTypes found;
    for (const JsonValue& branch : branches) {
      const JsonTypes types_of_branch = types(branch, references);
      if (types_of_branch.empty()) return {};
      found = found.with(types_of_branch);
    }
    return found;
  }

  const JsonValue& root_;
  int visited_ = 0;
};

std::optional<JsonValue> parsed(std::string_view text) {
  try {
    return parse_json(text, "argument");
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool allowed(const JsonValue& value, JsonTypes types) { return !types.both(type_of(value)).empty(); }

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

}  // namespace

JsonTypes JsonTypes::both(JsonTypes other) const {
  if (empty()) return other;
  if (other.empty()) return *this;
  return JsonTypes(static_cast<uint8_t>(bits_ & other.bits_));
}

JsonTypes schema_types(const JsonValue& schema, const JsonValue& root) { return SchemaWalk(root).types(schema); }

std::string typed_value(std::string_view text, JsonTypes types) {
  std::string out;
  std::optional<JsonValue> value = types.only_string() ? std::nullopt : parsed(text);
  // "5" in quotes where a number is wanted.
  const bool wants_number = types.has(JsonTypes::integer) || types.has(JsonTypes::number);
  if (value && value->string() != nullptr && wants_number && !types.has(JsonTypes::string)) {
    if (auto inner = parsed(*value->string()); inner && inner->number() != nullptr) value = std::move(inner);
  }
  bool use = value && (types.empty() ? value->string() == nullptr : allowed(*value, types));
  // Where a string is allowed too, only what cannot be meant as one is taken as a value.
  if (use && types.has(JsonTypes::string)) {
    use = (value->is_null() && text == "null") || value->object() != nullptr || value->array() != nullptr;
  }
  if (use) {
    print_python_json(*value, out);
  } else {
    print_python_json(text, out);
  }
  return out;
}

ToolSchemas::ToolSchemas(const std::vector<std::string>& tools) {
  for (const std::string& text : tools) {
    const JsonValue tool = parse_json(text, "tools");
    const JsonValue* nested = tool.find("function");
    const JsonValue& function = nested != nullptr ? *nested : tool;
    const JsonValue* name = function.find("name");
    if (name == nullptr || name->string() == nullptr) continue;
    const JsonValue* parameters = function.find("parameters");
    parameters_.emplace(*name->string(), parameters != nullptr ? *parameters : JsonValue{});
    names_by_lower_case_.emplace(lower_case(*name->string()), *name->string());
  }
}

const JsonValue* ToolSchemas::parameters_of(std::string_view name) const {
  auto found = parameters_.find(name);
  if (found == parameters_.end()) {
    const auto other = names_by_lower_case_.find(lower_case(name));
    if (other != names_by_lower_case_.end()) found = parameters_.find(other->second);
  }
  return found == parameters_.end() ? nullptr : &found->second;
}

JsonTypes ToolSchemas::types_of(std::string_view name, std::string_view key) const {
  const JsonValue* parameters = parameters_of(name);
  return parameters != nullptr ? SchemaWalk(*parameters).property(*parameters, key) : JsonTypes();
}

}  // namespace tandem::chat
