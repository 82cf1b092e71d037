// Small pieces of schemas: members, numbers, types, equality.
#include "grammar/schema_node.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace tandem::grammar {

JsonValue json_object(std::initializer_list<JsonMember> members) {
  JsonValue value;
  value.data = JsonValue::Object(members);
  return value;
}

JsonValue json_text(std::string text) {
  JsonValue value;
  value.data = std::move(text);
  return value;
}

JsonValue json_integer(int64_t number) {
  JsonValue value;
  value.data = JsonValue::Number{std::to_string(number), true};
  return value;
}

void set_member(JsonValue& object, std::string_view key, JsonValue value) {
  auto& members = std::get<JsonValue::Object>(object.data);
  for (JsonMember& member : members) {
    if (member.key != key) continue;
    member.value = std::move(value);
    return;
  }
  members.push_back({std::string(key), std::move(value)});
}

void remove_member(JsonValue& object, std::string_view key) {
  auto& members = std::get<JsonValue::Object>(object.data);
  std::erase_if(members, [key](const JsonMember& member) { return member.key == key; });
}

namespace {

void print_compact(const JsonValue& value, std::string& out) {
  if (const auto* array = value.array()) {
    out += '[';
    for (size_t i = 0; i < array->size(); ++i) {
      if (i > 0) out += ',';
      print_compact((*array)[i], out);
    }
    out += ']';
  } else if (const auto* object = value.object()) {
    out += '{';
    for (size_t i = 0; i < object->size(); ++i) {
      if (i > 0) out += ',';
      chat::print_python_json(std::string_view((*object)[i].key), out);
      out += ':';
      print_compact((*object)[i].value, out);
    }
    out += '}';
  } else {
    chat::print_python_json(value, out);
  }
}

}  // namespace

std::string compact_json(const JsonValue& value) {
  std::string out;
  print_compact(value, out);
  return out;
}

std::optional<double> number_of(const JsonValue& value) {
  const auto* number = value.number();
  if (number == nullptr) return std::nullopt;
  return std::strtod(number->spelling.c_str(), nullptr);
}

std::optional<int64_t> integer_of(const JsonValue& value) {
  const auto number = number_of(value);
  if (!number || *number != std::floor(*number) || std::fabs(*number) >= 9.2e18) return std::nullopt;
  if (value.number()->integer) return std::strtoll(value.number()->spelling.c_str(), nullptr, 10);
  return static_cast<int64_t>(*number);
}

bool equal_json(const JsonValue& a, const JsonValue& b) {
  if (a.number() != nullptr && b.number() != nullptr) {
    const bool integers = a.number()->integer && b.number()->integer;
    return integers ? a.number()->spelling == b.number()->spelling : number_of(a) == number_of(b);
  }
  if (a.data.index() != b.data.index()) return false;
  if (a.boolean() != nullptr) return *a.boolean() == *b.boolean();
  if (a.string() != nullptr) return *a.string() == *b.string();
  if (const auto* array = a.array())
    return std::equal(array->begin(), array->end(), b.array()->begin(), b.array()->end(), equal_json);
  if (const auto* object = a.object()) {
    return object->size() == b.object()->size() &&
           std::all_of(object->begin(), object->end(), [&](const JsonMember& member) {
             const JsonValue* other = b.find(member.key);
             return other != nullptr && equal_json(member.value, *other);
           });
  }
  return true;
}

JsonTypes type_of(const JsonValue& value) {
  if (value.boolean() != nullptr) return JsonTypes(JsonTypes::boolean);
  if (value.string() != nullptr) return JsonTypes(JsonTypes::string);
  if (value.array() != nullptr) return JsonTypes(JsonTypes::array);
  if (value.object() != nullptr) return JsonTypes(JsonTypes::object);
  if (value.number() != nullptr) return JsonTypes(integer_of(value) ? JsonTypes::integer : JsonTypes::number);
  return JsonTypes(JsonTypes::null);
}

namespace {

constexpr uint8_t numeric = JsonTypes::integer | JsonTypes::number;
constexpr uint8_t all_types = 127;

struct KeywordOf {
  std::string_view keyword;
  uint8_t types;
};
constexpr std::array keywords_of = std::to_array<KeywordOf>({
    {"properties", JsonTypes::object},
    {"required", JsonTypes::object},
    {"additionalProperties", JsonTypes::object},
    {"unevaluatedProperties", JsonTypes::object},
    {"patternProperties", JsonTypes::object},
    {"propertyNames", JsonTypes::object},
    {"minProperties", JsonTypes::object},
    {"maxProperties", JsonTypes::object},
    {"items", JsonTypes::array},
    {"prefixItems", JsonTypes::array},
    {"minItems", JsonTypes::array},
    {"maxItems", JsonTypes::array},
    {"minLength", JsonTypes::string},
    {"maxLength", JsonTypes::string},
    {"pattern", JsonTypes::string},
    {"format", JsonTypes::string},
    {"minimum", numeric},
    {"maximum", numeric},
    {"exclusiveMinimum", numeric},
    {"exclusiveMaximum", numeric},
    {"multipleOf", numeric},
});

uint8_t bits_of(const JsonValue& type) {
  constexpr std::array<std::pair<std::string_view, uint8_t>, 7> names{{{"null", JsonTypes::null},
                                                                       {"boolean", JsonTypes::boolean},
                                                                       {"object", JsonTypes::object},
                                                                       {"array", JsonTypes::array},
                                                                       {"integer", JsonTypes::integer},
                                                                       {"number", numeric},
                                                                       {"string", JsonTypes::string}}};
  uint8_t bits = 0;
  for (const auto& [name, bit] : names) {
    if (type.string() != nullptr && *type.string() == name) bits |= bit;
  }
  if (const auto* list = type.array()) {
    for (const JsonValue& one : *list) bits |= bits_of(one);
  }
  return bits;
}

}  // namespace

JsonTypes types_of(const JsonValue& node, bool implied) {
  if (const JsonValue* type = node.find("type")) return JsonTypes(bits_of(*type));
  uint8_t bits = 0;
  for (const auto& [keyword, types] : keywords_of) {
    if (implied && node.find(keyword) != nullptr) bits |= types;
  }
  return JsonTypes(bits == 0 ? all_types : bits);
}

std::optional<JsonValue::Array> literals_of(const JsonValue& node) {
  std::optional<JsonValue::Array> out;
  if (const JsonValue* list = node.find("enum"); list != nullptr && list->array() != nullptr) out = *list->array();
  if (const JsonValue* one = node.find("const")) {
    if (out && std::none_of(out->begin(), out->end(), [one](const JsonValue& v) { return equal_json(v, *one); })) {
      return JsonValue::Array{};
    }
    out = JsonValue::Array{*one};
  }
  return out;
}

bool allows_literal(const JsonValue& node, const JsonValue& value) {
  const auto bound = [&](std::string_view keyword) {
    const JsonValue* found = node.find(keyword);
    return found != nullptr ? number_of(*found) : std::nullopt;
  };
  if (types_of(node, false).both(type_of(value)).empty()) return false;
  if (const auto number = number_of(value)) {
    if (const auto limit = bound("minimum"); limit && *number < *limit) return false;
    if (const auto limit = bound("maximum"); limit && *number > *limit) return false;
    if (const auto limit = bound("exclusiveMinimum"); limit && *number <= *limit) return false;
    if (const auto limit = bound("exclusiveMaximum"); limit && *number >= *limit) return false;
    if (const auto step = bound("multipleOf"); step && *step > 0 && std::fmod(*number, *step) != 0) return false;
  }
  if (const auto* text = value.string()) {
    const auto characters = static_cast<double>(std::count_if(
        text->begin(), text->end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
    if (const auto limit = bound("minLength"); limit && characters < *limit) return false;
    if (const auto limit = bound("maxLength"); limit && characters > *limit) return false;
  }
  return true;
}

}  // namespace tandem::grammar
