// A schema without references and combinations: what one alternative asks of a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/json.h"
#include "chat/tool_values.h"

namespace tandem::grammar {

using chat::JsonMember;
using chat::JsonTypes;
using chat::JsonValue;

// Whether a list of keywords has this one.
bool is_in(const auto& keywords, std::string_view key) {
  return std::find(keywords.begin(), keywords.end(), key) != keywords.end();
}

JsonValue json_object(std::initializer_list<JsonMember> members = {});
JsonValue json_text(std::string text);
JsonValue json_integer(int64_t value);
// Adds the member or replaces its value.
void set_member(JsonValue& object, std::string_view key, JsonValue value);
void remove_member(JsonValue& object, std::string_view key);
std::string compact_json(const JsonValue& value);
// A number's value; not a number: empty.
std::optional<double> number_of(const JsonValue& value);
// An integer of at most 64 bits, also when it is spelled 2.0.
std::optional<int64_t> integer_of(const JsonValue& value);
// Equal as JSON values: 1 and 1.0 are, the order of an object's keys does not count.
bool equal_json(const JsonValue& a, const JsonValue& b);
JsonTypes type_of(const JsonValue& value);

// The types that a node allows, from `type` and, if `implied`, from the keywords that speak of one type only.
JsonTypes types_of(const JsonValue& node, bool implied);
// The value of `enum` or `const` as a list; empty: neither is there.
std::optional<JsonValue::Array> literals_of(const JsonValue& node);

// What both ask, of two nodes without combinations; `where` for errors. Empty: no value satisfies both. Throws
// Error(usage) for keywords that cannot be put together (two patterns).
std::optional<JsonValue> merged(const JsonValue& a, const JsonValue& b, bool open, const std::string& where);

// Whether a literal satisfies the node's scalar keywords (type, bounds, lengths, multipleOf).
bool allows_literal(const JsonValue& node, const JsonValue& value);

// True only if no value satisfies both nodes.
bool are_disjoint(const JsonValue& a, const JsonValue& b, bool open);

}  // namespace tandem::grammar
