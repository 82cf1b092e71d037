// Two nodes as one, and nodes that exclude each other.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "grammar/schema_node.h"

namespace tandem::grammar {

namespace {

constexpr std::array larger_wins =
    std::to_array<std::string_view>({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"});
constexpr std::array smaller_wins =
    std::to_array<std::string_view>({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"});

bool is_false(const JsonValue* value) { return value != nullptr && value->boolean() != nullptr && !*value->boolean(); }
bool is_true(const JsonValue* value) {
  return value == nullptr || (value->boolean() != nullptr && *value->boolean()) ||
         (value->object() != nullptr && value->object()->empty());
}

// Both schemas hold, as a schema that is looked at later.
JsonValue both_of(const JsonValue& a, const JsonValue& b) {
  if (is_true(&a) || equal_json(a, b)) return b;
  if (is_true(&b)) return a;
  JsonValue list;
  list.data = JsonValue::Array{a, b};
  return json_object({{"allOf", std::move(list)}});
}

JsonValue type_list(JsonTypes types) {
  JsonValue::Array names;
  const auto add = [&](JsonTypes::Bit bit, const char* name) {
    if (types.has(bit)) names.push_back(json_text(name));
  };
  add(JsonTypes::null, "null");
  add(JsonTypes::boolean, "boolean");
  add(JsonTypes::object, "object");
  add(JsonTypes::array, "array");
  if (!types.has(JsonTypes::number)) add(JsonTypes::integer, "integer");
  add(JsonTypes::number, "number");
  add(JsonTypes::string, "string");
  JsonValue value;
  value.data = std::move(names);
  return value;
}

class Merger {
 public:
  Merger(const JsonValue& a, const JsonValue& b, const std::string& where) : a_(a), b_(b), where_(where), out_(a) {}

  std::optional<JsonValue> merge() {
    if (!merge_types() || !merge_literals()) return std::nullopt;
    merge_objects();
    for (const JsonMember& member : *b_.object()) {
      const std::string& key = member.key;
      if (key == "type" || key == "enum" || key == "const" || key == "properties" || key == "additionalProperties")
        continue;
      const JsonValue* mine = out_.find(key);
      set_member(out_, key, mine == nullptr ? member.value : merge_keyword(key, *mine, member.value));
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view key) const {
    throw Error(ErrorCode::usage, where_, fmt::format("keyword '{}' in two schemas that both have to hold", key),
                "it in one of them");
  }

  bool merge_types() {
    if (a_.find("type") == nullptr && b_.find("type") == nullptr) return true;
    const JsonTypes types = types_of(a_, false).both(types_of(b_, false));
    set_member(out_, "type", type_list(types));
    return !types.empty();
  }

  bool merge_literals() {
    auto mine = literals_of(a_);
    const auto theirs = literals_of(b_);
    if (!theirs) return true;
    if (mine) {
      std::erase_if(*mine, [&](const JsonValue& one) {
        return std::none_of(theirs->begin(), theirs->end(), [&](const JsonValue& v) { return equal_json(v, one); });
      });
    } else {
      mine = theirs;
    }
    const bool is_possible = !mine->empty();
    JsonValue list;
    list.data = std::move(*mine);
    set_member(out_, "enum", std::move(list));
    remove_member(out_, "const");
    return is_possible;
  }

  // A key that one of them declares falls under additionalProperties of the other.
  void merge_objects() {
    const JsonValue* their_properties = b_.find("properties");
    const JsonValue* my_properties = a_.find("properties");
    const JsonValue* my_others = a_.find("additionalProperties");
    const JsonValue* their_others = b_.find("additionalProperties");
    for (const auto* node : {&a_, &b_}) {
      const auto* others = node == &a_ ? my_others : their_others;
      if (others != nullptr && !is_true(others) && node->find("patternProperties") != nullptr)
        refuse("patternProperties");
    }
    JsonValue properties = my_properties != nullptr ? *my_properties : json_object();
    if (!is_true(their_others)) {
      const JsonValue declared = properties;
      for (const JsonMember& member : *declared.object()) {
        const bool is_theirs = their_properties != nullptr && their_properties->find(member.key) != nullptr;
        if (!is_theirs) set_member(properties, member.key, both_of(member.value, *their_others));
      }
    }
    if (their_properties != nullptr) {
      for (const JsonMember& member : *their_properties->object()) {
        const JsonValue* mine = my_properties != nullptr ? my_properties->find(member.key) : my_others;
        if (my_properties != nullptr && mine == nullptr) mine = my_others;
        set_member(properties, member.key, mine == nullptr ? member.value : both_of(*mine, member.value));
      }
    }
    if (my_properties != nullptr || their_properties != nullptr) set_member(out_, "properties", std::move(properties));
    if (their_others != nullptr)
      set_member(out_, "additionalProperties",
                 my_others == nullptr ? *their_others : both_of(*my_others, *their_others));
  }

  JsonValue merge_keyword(const std::string& key, const JsonValue& mine, const JsonValue& theirs) const {
    if (equal_json(mine, theirs)) return mine;
    const auto x = number_of(mine), y = number_of(theirs);
    if (x && y && is_in(larger_wins, key)) return *x >= *y ? mine : theirs;
    if (x && y && is_in(smaller_wins, key)) return *x <= *y ? mine : theirs;
    if (key == "required") {
      JsonValue list = mine;
      for (const JsonValue& name : *theirs.array()) {
        auto& names = std::get<JsonValue::Array>(list.data);
        if (std::none_of(names.begin(), names.end(), [&](const JsonValue& v) { return equal_json(v, name); }))
          names.push_back(name);
      }
      return list;
    }
    const bool is_array = mine.array() != nullptr || theirs.array() != nullptr;
    if (key == "items" && !is_array && a_.find("prefixItems") == nullptr && b_.find("prefixItems") == nullptr)
      return both_of(mine, theirs);
    if (key == "multipleOf") {
      const auto p = integer_of(mine), q = integer_of(theirs);
      if (p && q && *p > 0 && *q > 0 && *p < (int64_t{1} << 31) && *q < (int64_t{1} << 31))
        return json_integer(std::lcm(*p, *q));
    }
    if (key == "unevaluatedProperties" && (is_false(&mine) || is_false(&theirs)))
      return is_false(&mine) ? mine : theirs;
    refuse(key);
  }

  const JsonValue& a_;
  const JsonValue& b_;
  const std::string& where_;
  JsonValue out_;
};

bool requires_key(const JsonValue& node, std::string_view key) {
  const JsonValue* list = node.find("required");
  return list != nullptr && std::any_of(list->array()->begin(), list->array()->end(), [key](const JsonValue& name) {
           return name.string() != nullptr && *name.string() == key;
         });
}

bool forbids_key(const JsonValue& node, std::string_view key, bool open) {
  const JsonValue* properties = node.find("properties");
  if (node.find("patternProperties") != nullptr) return false;
  if (properties != nullptr && properties->find(key) != nullptr) return is_false(properties->find(key));
  const JsonValue* others = node.find("additionalProperties");
  if (others != nullptr) return is_false(others);
  return !open && properties != nullptr;
}

struct Range {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool open_low = false, open_high = false;
};

Range range_of(const JsonValue& node) {
  Range range;
  const auto bound = [&](std::string_view key) {
    const JsonValue* found = node.find(key);
    return found != nullptr ? number_of(*found) : std::nullopt;
  };
  if (const auto v = bound("minimum")) range.low = *v;
  if (const auto v = bound("exclusiveMinimum"); v && *v >= range.low) {
    range.low = *v;
    range.open_low = true;
  }
  if (const auto v = bound("maximum")) range.high = *v;
  if (const auto v = bound("exclusiveMaximum"); v && *v <= range.high) {
    range.high = *v;
    range.open_high = true;
  }
  return range;
}

// Of two nodes that both allow numbers, or both strings' lengths.
bool ranges_exclude(const Range& a, const Range& b) {
  const auto below = [](const Range& x, const Range& y) {
    return x.high < y.low || (x.high == y.low && (x.open_high || y.open_low));
  };
  return below(a, b) || below(b, a);
}

// Plain enough to be compared: no references, no combinations.
bool is_plain(const JsonValue& node) {
  return node.object() != nullptr && node.find("$ref") == nullptr && node.find("anyOf") == nullptr &&
         node.find("oneOf") == nullptr && node.find("allOf") == nullptr;
}

bool objects_exclude(const JsonValue& a, const JsonValue& b, bool open) {
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    const JsonValue* list = one->find("required");
    if (list == nullptr) continue;
    for (const JsonValue& name : *list->array()) {
      if (forbids_key(*other, *name.string(), open)) return true;
      const JsonValue* mine = one->find("properties");
      const JsonValue* theirs = other->find("properties");
      mine = mine != nullptr ? mine->find(*name.string()) : nullptr;
      theirs = theirs != nullptr ? theirs->find(*name.string()) : nullptr;
      if (mine == nullptr || theirs == nullptr || !requires_key(*other, *name.string())) continue;
      if (is_plain(*mine) && is_plain(*theirs) && are_disjoint(*mine, *theirs, open)) return true;
    }
  }
  return false;
}

}  // namespace

std::optional<JsonValue> merged(const JsonValue& a, const JsonValue& b, bool, const std::string& where) {
  return Merger(a, b, where).merge();
}

bool are_disjoint(const JsonValue& a, const JsonValue& b, bool open) {
  const auto mine = literals_of(a), theirs = literals_of(b);
  if (mine) {
    return std::none_of(mine->begin(), mine->end(), [&](const JsonValue& one) {
      if (!theirs) return allows_literal(b, one);
      return std::any_of(theirs->begin(), theirs->end(), [&](const JsonValue& v) { return equal_json(v, one); });
    });
  }
  if (theirs) return are_disjoint(b, a, open);
  const JsonTypes shared = types_of(a, !open).both(types_of(b, !open));
  if (shared.empty()) return true;
  const bool only_numbers = JsonTypes(JsonTypes::integer | JsonTypes::number).both(shared) == shared;
  if (only_numbers) return ranges_exclude(range_of(a), range_of(b));
  if (shared == JsonTypes(JsonTypes::object)) return objects_exclude(a, b, open);
  return false;
}

}  // namespace tandem::grammar
