// The walk over a schema: references and combinations become alternatives, each alternative one schema a type.
#include "grammar/schema.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "grammar/pattern.h"
#include "grammar/schema_node.h"
#include "grammar/schema_types.h"

namespace tandem::grammar {

namespace {

constexpr size_t most_alternatives = 256;
constexpr int most_expansions = 64;    // references followed inside one combination
constexpr size_t most_nodes = 20'000;  // of all alternatives

constexpr std::array annotations = std::to_array<std::string_view>(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment",
     "$schema", "$defs", "definitions", "discriminator", "externalDocs"});
constexpr std::array enforced = std::to_array<std::string_view>({"type",
                                                                 "enum",
                                                                 "const",
                                                                 "properties",
                                                                 "required",
                                                                 "additionalProperties",
                                                                 "unevaluatedProperties",
                                                                 "patternProperties",
                                                                 "propertyNames",
                                                                 "minProperties",
                                                                 "maxProperties",
                                                                 "items",
                                                                 "prefixItems",
                                                                 "additionalItems",
                                                                 "minItems",
                                                                 "maxItems",
                                                                 "minLength",
                                                                 "maxLength",
                                                                 "pattern",
                                                                 "format",
                                                                 "minimum",
                                                                 "maximum",
                                                                 "exclusiveMinimum",
                                                                 "exclusiveMaximum",
                                                                 "multipleOf",
                                                                 "$ref",
                                                                 "anyOf",
                                                                 "oneOf",
                                                                 "allOf"});
constexpr std::array type_names =
    std::to_array<std::string_view>({"null", "boolean", "object", "array", "integer", "number", "string"});

}  // namespace

class SchemaWalker {
 public:
  SchemaWalker(const JsonValue& root, const SchemaOptions& options, std::vector<std::string>& ignored)
      : root_(root), context_{options, ignored, [this](const JsonValue& schema, const std::string& path) {
                                return node(schema, path);
                              }} {}

  JsonValue walk(const std::string& place) {
    auto out = node(resolve(place, place), place);
    if (!out) throw Error(ErrorCode::usage, place, std::string(satisfied_by_nothing), "a satisfiable schema");
    JsonValue defs = json_object();
    while (!pending_.empty()) {  // a reference's target may hold others
      const std::string target = pending_.back();
      pending_.pop_back();
      auto value = node(resolve(target, target), target);
      if (!value) throw Error(ErrorCode::usage, target, std::string(satisfied_by_nothing), "a satisfiable schema");
      set_member(defs, names_.at(target), std::move(*value));
    }
    check_cycles(defs);
    if (!defs.object()->empty()) {
      // A root that is itself a reference has no other members for xgrammar.
      if (out->find("$ref") != nullptr) {
        JsonValue list;
        list.data = JsonValue::Array{*out};
        out = json_object({{"anyOf", std::move(list)}});
      }
      set_member(*out, "$defs", std::move(defs));
    }
    return *out;
  }

 private:
  // A node without combinations, and the places that its references come from.
  using Alternatives = std::vector<JsonValue>;

  // The schema in xgrammar's form; empty: no value satisfies it.
  std::optional<JsonValue> node(const JsonValue& schema, const std::string& path) {
    if (++depth_ > most_schema_depth)
      throw Error(ErrorCode::usage, path, "a schema nested too deeply",
                  fmt::format("at most {} levels", most_schema_depth));
    std::vector<JsonValue> finished;
    for (const JsonValue& one : alternatives(schema, path)) {
      if (const JsonValue* reference = one.find("$ref")) {
        finished.push_back(json_object({{"$ref", json_text("#/$defs/" + name_of(*reference->string()))}}));
        continue;
      }
      for (JsonValue& typed : finish_node(one, path, context_)) finished.push_back(std::move(typed));
    }
    --depth_;
    if (finished.empty()) return std::nullopt;
    if (finished.size() == 1) return std::move(finished.front());
    JsonValue list;
    list.data = std::move(finished);
    return json_object({{"anyOf", std::move(list)}});
  }

  Alternatives alternatives(const JsonValue& schema, const std::string& path) {
    if (++nodes_ > most_nodes)
      throw Error(ErrorCode::usage, path, "a schema with too many alternatives", "a smaller one");
    if (schema.boolean() != nullptr) return *schema.boolean() ? Alternatives{json_object()} : Alternatives{};
    if (schema.object() == nullptr)
      throw Error(ErrorCode::usage, path, compact_json(schema).substr(0, 40), "a schema: an object, true or false");
    JsonValue own = json_object();
    for (const JsonMember& member : *schema.object()) take_keyword(member, path, own);
    Alternatives out{own};
    if (const JsonValue* reference = schema.find("$ref")) {
      const std::string target = checked_reference(*reference, path);
      out = product(out, {json_object({{"$ref", json_text(target)}})}, path);
    }
    for (const auto* keyword : {"allOf", "anyOf", "oneOf"}) {
      const JsonValue* list = schema.find(keyword);
      if (list == nullptr) continue;
      if (list->array() == nullptr || list->array()->empty())
        throw Error(ErrorCode::usage, fmt::format("{}/{}", path, keyword), "no list of schemas",
                    "a list that is not empty");
      out = combine(out, keyword, *list->array(), fmt::format("{}/{}", path, keyword), path);
    }
    return out;
  }

  Alternatives combine(Alternatives out, std::string_view keyword, const JsonValue::Array& list,
                       const std::string& place, const std::string& path) {
    if (keyword == "allOf") {
      for (size_t i = 0; i < list.size(); ++i)
        out = product(out, alternatives(list[i], fmt::format("{}/{}", place, i)), path);
      return out;
    }
    std::vector<Alternatives> branches;
    Alternatives all;
    for (size_t i = 0; i < list.size(); ++i) {
      branches.push_back(alternatives(list[i], fmt::format("{}/{}", place, i)));
      all.insert(all.end(), branches.back().begin(), branches.back().end());
    }
    if (keyword == "oneOf") check_exclusive(branches, out, place, path);
    return product(out, all, path);
  }

  // oneOf is anyOf where no value satisfies two branches.
  void check_exclusive(const std::vector<Alternatives>& branches, const Alternatives& own, const std::string& place,
                       const std::string& path) {
    for (size_t i = 0; i < branches.size(); ++i) {
      for (size_t j = i + 1; j < branches.size(); ++j) {
        const Alternatives a = expanded(product(own, branches[i], path), path),
                           b = expanded(product(own, branches[j], path), path);
        const bool are_apart = std::all_of(a.begin(), a.end(), [&](const JsonValue& x) {
          return std::all_of(b.begin(), b.end(),
                             [&](const JsonValue& y) { return are_disjoint(x, y, context_.options.open); });
        });
        if (are_apart) continue;
        context_.unsupported(place, fmt::format("keyword 'oneOf' whose branches {} and {} may both hold", i, j),
                             "branches that exclude each other (by type, a constant or a required key), or anyOf");
      }
    }
  }

  void take_keyword(const JsonMember& member, const std::string& path, JsonValue& own) {
    const std::string& key = member.key;
    if (is_in(annotations, key) || key.starts_with("x-")) return;
    if (key == "$ref" || key == "anyOf" || key == "oneOf" || key == "allOf") return;
    if ((key == "$id" || key == "id") && path == "#") return;
    if (key == "uniqueItems" && member.value.boolean() != nullptr && !*member.value.boolean()) return;
    if (!is_in(enforced, key)) {
      context_.unsupported(path, fmt::format("keyword '{}'", key.substr(0, 64)),
                           "keywords that structured output enforces");
      return;
    }
    check_value(key, member.value, path);
    set_member(own, key, member.value);
  }

  static bool has_exact_integers(const JsonValue& value) {
    if (const auto* number = value.number()) {
      int64_t exact = 0;
      const char* end = number->spelling.data() + number->spelling.size();
      return !number->integer || std::from_chars(number->spelling.data(), end, exact).ec == std::errc();
    }
    if (const auto* list = value.array()) return std::all_of(list->begin(), list->end(), has_exact_integers);
    if (const auto* members = value.object()) {
      return std::all_of(members->begin(), members->end(),
                         [](const JsonMember& member) { return has_exact_integers(member.value); });
    }
    return true;
  }

  static void check_value(std::string_view key, const JsonValue& value, const std::string& path) {
    const auto require = [&](bool holds, const char* expected) {
      if (!holds)
        throw Error(ErrorCode::usage, fmt::format("{}/{}", path, key), compact_json(value).substr(0, 40), expected);
    };
    const auto is_type = [](const JsonValue& one) {
      return one.string() != nullptr && is_in(type_names, *one.string());
    };
    constexpr auto counts = std::to_array<std::string_view>(
        {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"});
    constexpr auto numbers =
        std::to_array<std::string_view>({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"});
    if (key == "type") {
      const auto* list = value.array();
      require(is_type(value) || (list != nullptr && !list->empty() && std::all_of(list->begin(), list->end(), is_type)),
              "one of null, boolean, object, array, integer, number, string, or a list of them");
    }
    if (key == "enum") {
      require(value.array() != nullptr && !value.array()->empty(), "a list of values");
      require(value.array()->size() <= most_enum_values, "at most 10000 values");
    }
    if (key == "enum" || key == "const")
      require(has_exact_integers(value), "integers from -2^63 to 2^63 - 1: others would not be written digit by digit");
    if (key == "required") {
      require(value.array() != nullptr && std::all_of(value.array()->begin(), value.array()->end(),
                                                      [](const JsonValue& name) { return name.string() != nullptr; }),
              "a list of names");
    }
    if (key == "properties" || key == "patternProperties") require(value.object() != nullptr, "an object of schemas");
    if (key == "pattern" || key == "format") require(value.string() != nullptr, "a string");
    if (is_in(numbers, key)) require(number_of(value).has_value(), "a number");
    if (key == "multipleOf") require(*number_of(value) > 0, "more than 0");
    if (is_in(counts, key)) {
      const auto count = integer_of(value);
      require(count && *count >= 0, "an integer of at least 0");
    }
  }

  // Every pair of both lists, as one node each; pairs that exclude each other fall away.
  Alternatives product(const Alternatives& a, const Alternatives& b, const std::string& path) {
    const auto is_free = [](const Alternatives& list) { return list.size() == 1 && list[0].object()->empty(); };
    if (is_free(a)) return b;
    if (is_free(b)) return a;
    Alternatives out;
    const Alternatives mine = expanded(a, path), theirs = expanded(b, path);
    for (const JsonValue& x : mine) {
      for (const JsonValue& y : theirs) {
        if (auto both = merged(x, y, context_.options.open, path)) out.push_back(std::move(*both));
        if (out.size() > most_alternatives || ++nodes_ > most_nodes)
          throw Error(ErrorCode::usage, path, "combinations with too many alternatives",
                      fmt::format("at most {}", most_alternatives));
      }
    }
    return out;
  }

  // References replaced by what they refer to.
  Alternatives expanded(const Alternatives& list, const std::string& path) {
    Alternatives out;
    for (const JsonValue& one : list) {
      const JsonValue* reference = one.find("$ref");
      if (reference == nullptr) {
        out.push_back(one);
        continue;
      }
      if (++expansions_ > most_expansions)
        throw Error(ErrorCode::usage, path, "a reference that leads back to itself inside a combination",
                    "a reference without other keywords");
      const std::string target = *reference->string();
      for (JsonValue& value : expanded(alternatives(resolve(target, path), target), path))
        out.push_back(std::move(value));
      --expansions_;
    }
    return out;
  }

  std::string checked_reference(const JsonValue& reference, const std::string& path) {
    std::string text = reference.string() != nullptr ? *reference.string() : std::string();
    if (text != "#" && !text.starts_with("#/")) {
      throw Error(ErrorCode::usage, path, fmt::format("keyword '$ref' with '{}'", text.substr(0, 64)),
                  "a reference into the same schema: '#' or '#/…'");
    }
    const JsonValue* at = &resolve(text, path);
    // A chain of nothing but references would never come to a value.
    for (int step = 0; at->find("$ref") != nullptr && at->find("$ref")->string() != nullptr; ++step) {
      if (step > most_schema_depth)
        throw Error(
            ErrorCode::usage, path,
            fmt::format("keyword '$ref' that leads back to itself, or to more than {} others", most_schema_depth),
            "a reference to a schema");
      const std::string next = *at->find("$ref")->string();
      if (next != "#" && !next.starts_with("#/")) break;
      at = &resolve(next, path);
    }
    return text;
  }

  const JsonValue& resolve(const std::string& reference, const std::string& path) const {
    const JsonValue* at = &root_;
    for (size_t begin = 2; begin <= reference.size() && reference.size() > 1;) {
      const size_t end = std::min(reference.find('/', begin), reference.size());
      const std::string step = unescaped(reference.substr(begin, end - begin));
      const JsonValue* next = at->find(step);
      if (next == nullptr && at->array() != nullptr && !step.empty() && step.size() < 6 &&
          step.find_first_not_of("0123456789") == std::string::npos) {
        const size_t index = std::stoul(step);
        if (index < at->array()->size()) next = &(*at->array())[index];
      }
      if (next == nullptr)
        throw Error(ErrorCode::usage, path,
                    fmt::format("keyword '$ref' to '{}', which is not there", reference.substr(0, 64)), "a schema");
      at = next;
      begin = end + 1;
    }
    return *at;
  }

  // JSON pointer in a URI fragment: %25, ~1, ~0.
  static std::string unescaped(const std::string& step) {
    std::string out;
    for (size_t i = 0; i < step.size(); ++i) {
      const std::string hex = step.substr(i + 1 > step.size() ? step.size() : i + 1, 2);
      if (step[i] == '%' && hex.size() == 2 && hex.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos) {
        out += static_cast<char>(std::stoi(hex, nullptr, 16));
        i += 2;
      } else {
        out += step[i];
      }
    }
    std::string plain;
    for (size_t i = 0; i < out.size(); ++i) {
      const bool is_escape = out[i] == '~' && i + 1 < out.size() && (out[i + 1] == '0' || out[i + 1] == '1');
      plain += is_escape ? (out[i + 1] == '0' ? '~' : '/') : out[i];
      if (is_escape) ++i;
    }
    return plain;
  }

  // A definition that begins with itself has no first character. The names of a definition's own alternatives:
  static std::vector<std::string> leading_references(const JsonValue& value) {
    std::vector<std::string> out;
    constexpr size_t prefix = std::string_view("#/$defs/").size();
    if (const JsonValue* reference = value.find("$ref")) out.push_back(reference->string()->substr(prefix));
    if (const JsonValue* list = value.find("anyOf")) {
      for (const JsonValue& one : *list->array())
        for (std::string& name : leading_references(one)) out.push_back(std::move(name));
    }
    return out;
  }

  void check_cycles(const JsonValue& defs) const {
    for (const auto& [target, name] : names_) {
      std::vector<std::string> open = leading_references(*defs.find(name));
      for (size_t i = 0; i < open.size(); ++i) {
        if (open[i] == name)
          throw Error(ErrorCode::usage, target, "keyword '$ref' that leads back to itself",
                      "something between the two");
        for (std::string& next : leading_references(*defs.find(open[i])))
          if (std::find(open.begin(), open.end(), next) == open.end()) open.push_back(std::move(next));
      }
    }
  }

  const std::string& name_of(const std::string& target) {
    const auto [entry, is_new] = names_.emplace(target, fmt::format("r{}", names_.size()));
    if (is_new) pending_.push_back(target);
    return entry->second;
  }

  const JsonValue& root_;
  SchemaContext context_;
  std::map<std::string, std::string> names_;  // of references
  std::vector<std::string> pending_;          // references whose targets are to be walked
  int depth_ = 0, expansions_ = 0;
  size_t nodes_ = 0;
};

void SchemaContext::unsupported(const std::string& path, const std::string& found, const std::string& expected) const {
  if (!options.ignore_unsupported) throw Error(ErrorCode::usage, path, found, expected);
  ignored.push_back(fmt::format("{}: {}", path, found));
}

PreparedSchema prepare_schema(const JsonValue& document, const std::string& place, const SchemaOptions& options) {
  PreparedSchema out;
  out.value = SchemaWalker(document, options, out.ignored).walk(place);
  out.text = compact_json(out.value);
  if (out.text.size() > 8 * most_schema_bytes)
    throw Error(ErrorCode::usage, "#", "a schema whose alternatives are too large", "a smaller one");
  return out;
}

PreparedSchema prepare_schema(const JsonValue& schema, const SchemaOptions& options) {
  return prepare_schema(schema, "#", options);
}

PreparedSchema prepare_schema(std::string_view schema, const SchemaOptions& options) {
  if (schema.size() > most_schema_bytes)
    throw Error(ErrorCode::usage, "#", fmt::format("{} bytes of schema", schema.size()),
                fmt::format("at most {}", most_schema_bytes));
  return prepare_schema(chat::parse_json(schema, "#"), options);
}

}  // namespace tandem::grammar
