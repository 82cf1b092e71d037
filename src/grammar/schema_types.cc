// Keywords of one type at a time.
#include "grammar/schema_types.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "grammar/pattern.h"

namespace tandem::grammar {

namespace {

// xgrammar counts multiples with one state each, or lists them where both bounds are given.
constexpr int64_t most_multiple = 1024, most_multiples_range = 10'000;
constexpr double most_exact = 9.0e15;  // doubles below are exact in their last digit

class NodeFinisher {
 public:
  NodeFinisher(const JsonValue& node, const std::string& path, const SchemaContext& context)
      : node_(node), path_(path), context_(context) {}

  std::vector<JsonValue> finish() {
    if (const auto literals = literals_of(node_)) return finish_literals(*literals);
    const JsonTypes types = types_of(node_, !context_.options.open);
    if (is_unconstrained()) return {json_object()};
    std::vector<JsonValue> out;
    const auto add = [&](std::optional<JsonValue> one) {
      if (one) out.push_back(std::move(*one));
    };
    const auto plain = [](const char* type) { return json_object({{"type", json_text(type)}}); };
    if (types.has(JsonTypes::object)) add(object());
    if (types.has(JsonTypes::array)) add(array());
    if (types.has(JsonTypes::string)) add(string());
    if (types.has(JsonTypes::number)) {
      add(number());
    } else if (types.has(JsonTypes::integer)) {
      add(integer());
    }
    if (types.has(JsonTypes::boolean)) add(plain("boolean"));
    if (types.has(JsonTypes::null)) add(plain("null"));
    return out;
  }

 private:
  bool has(std::string_view key) const { return node_.find(key) != nullptr; }
  std::optional<int64_t> count(std::string_view key) const {
    const JsonValue* value = node_.find(key);
    return value != nullptr ? integer_of(*value) : std::nullopt;
  }
  std::optional<double> bound(std::string_view key) const {
    const JsonValue* value = node_.find(key);
    return value != nullptr ? number_of(*value) : std::nullopt;
  }
  bool is_unconstrained() const { return node_.object()->empty(); }

  [[noreturn]] void refuse(const std::string& found, const std::string& expected) const {
    throw Error(ErrorCode::usage, path_, found, expected);
  }

  int64_t checked_count(std::string_view key, int64_t value) const {
    if (value > most_repetitions)
      refuse(fmt::format("keyword '{}' of {}", key, value), fmt::format("at most {}", most_repetitions));
    return value;
  }

  std::vector<JsonValue> finish_literals(const JsonValue::Array& literals) const {
    // Of the other keywords only those are compared that speak of scalars.
    for (const auto* key :
         {"properties", "required", "patternProperties", "propertyNames", "minProperties", "maxProperties", "items",
          "prefixItems", "minItems", "maxItems", "pattern", "format", "additionalProperties"}) {
      if (has(key))
        context_.unsupported(path_, fmt::format("keyword '{}' together with enum or const", key), "one of them");
    }
    JsonValue::Array kept;
    for (const JsonValue& value : literals) {
      if (allows_literal(node_, value)) kept.push_back(value);
    }
    if (kept.empty()) return {};
    JsonValue list;
    list.data = std::move(kept);
    return {json_object({{"enum", std::move(list)}})};
  }

  static JsonValue string_with(const std::string& pattern) {
    return json_object({{"type", json_text("string")}, {"pattern", json_text(pattern)}});
  }

  std::optional<JsonValue> string() const {
    std::optional<int64_t> least = count("minLength"), most = count("maxLength");
    if (least.value_or(0) == 0) least.reset();
    if (least) checked_count("minLength", *least);
    if (most) checked_count("maxLength", *most);
    if (least && most && *least > *most) return std::nullopt;
    const bool has_length = least || most;
    const JsonValue* format = node_.find("format");
    const JsonValue* pattern = node_.find("pattern");
    if (format != nullptr) {
      const auto known = format_pattern(*format->string());
      if (!known) {
        context_.unsupported(path_, fmt::format("keyword 'format' with '{}'", format->string()->substr(0, 64)),
                             std::string(supported_formats));
      } else if (pattern != nullptr || has_length) {
        context_.unsupported(path_, "keyword 'format' together with pattern, minLength or maxLength", "one of them");
      } else {
        return string_with(*known);
      }
    }
    if (pattern != nullptr) {
      try {
        return string_with(string_pattern(*pattern->string(), least, most, path_));
      } catch (const Error& error) {
        context_.unsupported(path_, fmt::format("keyword 'pattern': {}", error.found()), error.expected());
      }
    }
    if (has_length) return string_with(length_pattern(least, most));
    return json_object({{"type", json_text("string")}});
  }

  static JsonValue decimal(double value) {
    JsonValue out;
    out.data = JsonValue::Number{chat::python_float(value), false};
    return out;
  }

  // The smallest and largest integer within the bounds.
  std::optional<JsonValue> integer() const {
    double low = -std::numeric_limits<double>::infinity(), high = -low;
    if (const auto v = bound("minimum")) low = std::ceil(*v);
    if (const auto v = bound("exclusiveMinimum")) low = std::max(low, std::floor(*v) + 1);
    if (const auto v = bound("maximum")) high = std::floor(*v);
    if (const auto v = bound("exclusiveMaximum")) high = std::min(high, std::ceil(*v) - 1);
    if (low > high) return std::nullopt;
    JsonValue out = json_object({{"type", json_text("integer")}});
    const auto set = [&](const char* key, double value) {
      if (std::isinf(value)) return;
      if (std::fabs(value) > most_exact)
        refuse(fmt::format("keyword '{}' of {}", key, value), "a bound of at most 15 digits");
      set_member(out, key, json_integer(static_cast<int64_t>(value)));
    };
    set("minimum", low);
    set("maximum", high);
    if (!has("multipleOf")) return out;
    const auto step = integer_of(*node_.find("multipleOf"));
    const bool has_range = !std::isinf(low) || !std::isinf(high);
    if (!step || *step > most_multiple) {
      context_.unsupported(path_, "keyword 'multipleOf'", fmt::format("an integer of at most {}", most_multiple));
    } else if (has_range && !(high - low < static_cast<double>(most_multiples_range))) {
      context_.unsupported(path_, "keyword 'multipleOf' together with a bound",
                           fmt::format("both bounds, less than {} apart", most_multiples_range));
    } else if (has_range && std::floor(high / static_cast<double>(*step)) * static_cast<double>(*step) < low) {
      return std::nullopt;
    } else {
      set_member(out, "multipleOf", json_integer(*step));
    }
    return out;
  }

  std::optional<JsonValue> number() const {
    // Multiples of an integer are integers.
    if (has("multipleOf") && integer_of(*node_.find("multipleOf"))) return integer();
    if (has("multipleOf")) context_.unsupported(path_, "keyword 'multipleOf' with a fraction", "an integer");
    JsonValue out = json_object({{"type", json_text("number")}});
    double low = -std::numeric_limits<double>::infinity(), high = -low;
    bool is_open = false;
    struct Bound {
      const char* key;
      bool is_lower, is_open;
    };
    for (const Bound& one : {Bound{"minimum", true, false}, Bound{"exclusiveMinimum", true, true},
                             Bound{"maximum", false, false}, Bound{"exclusiveMaximum", false, true}}) {
      const auto value = bound(one.key);
      if (!value) continue;
      const double scaled = *value * 1e6;  // xgrammar writes ranges with 6 digits after the point
      if (std::fabs(*value) > 1e9 || std::fabs(scaled - std::round(scaled)) > 1e-3)
        refuse(fmt::format("keyword '{}' of {}", one.key, *value),
               "a bound of at most 10^9 with at most 6 digits after the point");
      double& limit = one.is_lower ? low : high;
      if (one.is_lower ? *value >= limit : *value <= limit) {
        limit = *value;
        is_open = is_open || one.is_open;
      }
      set_member(out, one.key,
                 std::floor(*value) == *value ? json_integer(static_cast<int64_t>(*value)) : decimal(*value));
    }
    if (low > high || (low == high && is_open)) return std::nullopt;
    return out;
  }

  std::optional<JsonValue> array() const {
    JsonValue out = json_object({{"type", json_text("array")}});
    const JsonValue* items = node_.find("items");
    const JsonValue* prefix = node_.find("prefixItems");
    const JsonValue* rest = items;
    if (items != nullptr && items->array() != nullptr) {  // drafts up to 7
      if (prefix != nullptr) refuse("keyword 'items' with a list, beside prefixItems", "one of them");
      prefix = items;
      rest = node_.find("additionalItems");
    }
    int64_t most = checked_count("maxItems",
                                 std::min<int64_t>(count("maxItems").value_or(0), std::numeric_limits<int32_t>::max()));
    bool has_most = has("maxItems");
    const int64_t least = checked_count("minItems", count("minItems").value_or(0));
    int64_t listed = 0;
    if (prefix != nullptr) {
      if (prefix->array() == nullptr) refuse("keyword 'prefixItems'", "a list of schemas");
      JsonValue::Array list;
      for (const JsonValue& item : *prefix->array()) {
        if (has_most && std::ssize(list) >= most) break;
        auto one = context_.below(item, fmt::format("{}/prefixItems/{}", path_, list.size()));
        if (!one) {  // no array reaches here
          most = has_most ? std::min<int64_t>(most, std::ssize(list)) : std::ssize(list);
          has_most = true;
          break;
        }
        list.push_back(std::move(*one));
      }
      listed = std::ssize(list);
      JsonValue value;
      value.data = std::move(list);
      if (listed > 0) set_member(out, "prefixItems", std::move(value));
    }
    JsonValue no;
    no.data = false;
    std::optional<JsonValue> further;
    const bool may_go_on = !has_most || most > listed;
    if (may_go_on && rest != nullptr) {
      further = context_.below(*rest, path_ + "/items");
    } else if (may_go_on && (prefix == nullptr || context_.options.open)) {
      further = json_object();
    }
    if (!further) {
      most = has_most ? std::min(most, listed) : listed;
      has_most = true;
    }
    if (has_most && least > most) return std::nullopt;
    set_member(out, "items", further ? std::move(*further) : std::move(no));
    if (least > 0) set_member(out, "minItems", json_integer(least));
    if (has_most && further) set_member(out, "maxItems", json_integer(most));
    return out;
  }

  // The schema of keys that are not declared; empty: they are forbidden.
  std::optional<JsonValue> others() const {
    const JsonValue* value = node_.find("additionalProperties");
    if (value == nullptr) value = node_.find("unevaluatedProperties");
    if (value != nullptr) return context_.below(*value, path_ + "/additionalProperties");
    const bool declares = has("properties") || has("patternProperties");
    if (declares && !context_.options.open) return std::nullopt;
    return json_object();
  }

  std::optional<JsonValue> object() const {
    JsonValue out = json_object({{"type", json_text("object")}});
    std::optional<JsonValue> undeclared = others();
    JsonValue properties = json_object();
    std::vector<std::string> required;
    if (const JsonValue* list = node_.find("required")) {
      for (const JsonValue& name : *list->array()) required.push_back(*name.string());
    }
    const auto is_required = [&](const std::string& key) {
      return std::find(required.begin(), required.end(), key) != required.end();
    };
    if (const JsonValue* declared = node_.find("properties")) {
      for (const JsonMember& member : *declared->object()) {
        auto one = context_.below(member.value, fmt::format("{}/properties/{}", path_, member.key));
        if (one) {
          set_member(properties, member.key, std::move(*one));
        } else if (is_required(member.key)) {
          return std::nullopt;
        } else if (undeclared) {
          context_.unsupported(fmt::format("{}/properties/{}", path_, member.key), "a key that must not be there",
                               "no undeclared keys (additionalProperties: false)");
        }
      }
    }
    for (const std::string& key : required) {
      if (properties.find(key) != nullptr) continue;
      const JsonValue* others_given = node_.find("additionalProperties");
      if (has("patternProperties") || has("propertyNames"))
        context_.unsupported(path_,
                             fmt::format("keyword 'required' with '{}', which is not in properties", key.substr(0, 64)),
                             "a declared key");
      if (!undeclared && others_given != nullptr) return std::nullopt;
      set_member(properties, key, undeclared.value_or(json_object()));
    }
    add_named_patterns(out, properties, undeclared);
    if (!required.empty()) set_member(out, "required", *node_.find("required"));
    return add_counts(std::move(out), std::move(properties), std::move(undeclared), std::ssize(required));
  }

  // Keys by a pattern, which xgrammar only knows beside no others.
  void add_named_patterns(JsonValue& out, const JsonValue& properties, std::optional<JsonValue>& undeclared) const {
    const JsonValue* patterns = node_.find("patternProperties");
    const JsonValue* names = node_.find("propertyNames");
    if (patterns == nullptr && names == nullptr) return;
    const bool is_alone = properties.object()->empty() && (patterns == nullptr) != (names == nullptr) &&
                          (patterns == nullptr || (patterns->object()->size() == 1 && !undeclared));
    if (!is_alone) {
      context_.unsupported(path_,
                           fmt::format("keyword '{}'", patterns != nullptr ? "patternProperties" : "propertyNames"),
                           "it without properties, one pattern, and no other keys");
      return;
    }
    JsonValue keys = json_object();
    if (patterns != nullptr) {
      const JsonMember& member = patterns->object()->front();
      auto value = context_.below(member.value, path_ + "/patternProperties");
      if (value)
        set_member(keys, string_pattern(member.key, std::nullopt, std::nullopt, path_ + "/patternProperties"),
                   std::move(*value));
    } else {
      // Keys that a schema of strings allows.
      const auto schema = context_.below(*names, path_ + "/propertyNames");
      const bool is_any =
          schema && (schema->object()->empty() || (schema->find("type") != nullptr && schema->object()->size() == 1 &&
                                                   *schema->find("type")->string() == "string"));
      if (is_any || !undeclared) return;
      const JsonValue* pattern = schema ? schema->find("pattern") : nullptr;
      if (schema && pattern == nullptr) {
        context_.unsupported(path_, "keyword 'propertyNames'", "the pattern, format or length of a string");
        return;
      }
      if (pattern != nullptr) set_member(keys, *pattern->string(), *undeclared);
      undeclared.reset();
    }
    if (!keys.object()->empty()) set_member(out, "patternProperties", std::move(keys));
  }

  std::optional<JsonValue> add_counts(JsonValue out, JsonValue properties, std::optional<JsonValue> undeclared,
                                      int64_t required) const {
    const auto least = count("minProperties"), most = count("maxProperties");
    const bool has_free_keys = undeclared || out.find("patternProperties") != nullptr;
    const int64_t declared = std::ssize(*properties.object());
    if (least && *least > 0) {
      checked_count("minProperties", *least);
      if (!has_free_keys && *least > declared) return std::nullopt;
      // A key that comes twice counts once.
      if (has_free_keys && *least > std::max<int64_t>(1, required))
        context_.unsupported(path_, "keyword 'minProperties' where keys are not declared",
                             "at most 1, or declared keys alone");
      set_member(out, "minProperties", json_integer(*least));
    }
    if (most) {
      if (*most < required) return std::nullopt;
      set_member(out, "maxProperties", json_integer(checked_count("maxProperties", *most)));
    }
    JsonValue no;
    no.data = false;
    if (declared > 0) set_member(out, "properties", std::move(properties));
    set_member(out, "additionalProperties", undeclared ? std::move(*undeclared) : std::move(no));
    return out;
  }

  const JsonValue& node_;
  const std::string& path_;
  const SchemaContext& context_;
};

}  // namespace

std::vector<JsonValue> finish_node(const JsonValue& node, const std::string& path, const SchemaContext& context) {
  return NodeFinisher(node, path, context).finish();
}

}  // namespace tandem::grammar
