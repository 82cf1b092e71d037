// Request bodies: bounds first (UTF-8, nesting), then nlohmann, then typed access.
#include "api/json_body.h"

#include <fmt/core.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/errors.h"
#include "text/utf8.h"

namespace tandem::api {

using Document = nlohmann::json;

// One object of the document, which it keeps alive.
struct JsonBody::Node {
  std::shared_ptr<const Document> document;
  const Document* object;

  // The member, or null when it is absent or JSON null.
  const Document* find(std::string_view name) const {
    const auto it = object->find(name);
    return it == object->end() || it->is_null() ? nullptr : &*it;
  }
};

namespace {

void give_memory_back() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

ApiError bad_body(const std::string& message) { return {400, "invalid_request_error", message}; }

void check_utf8(std::string_view text) {
  if (const auto at = text::first_invalid_utf8(text)) {
    throw bad_body(fmt::format("The request body is not valid UTF-8 (byte {}).", *at));
  }
}

// Counts brackets and commas outside strings: the parser recurses when a deep value is destroyed or written, and takes
// memory for each value. It would also take a NUL for the end of the text.
void check_structure(std::string_view text) {
  int depth = 0;
  int64_t values = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\0') throw bad_body(fmt::format("The request body is not valid JSON (byte {}).", i + 1));
    if (!in_string && (c == ',' || c == '{' || c == '[') && ++values > max_json_values) {
      throw bad_body(fmt::format("The request body has more than {} values.", max_json_values));
    }
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > max_json_depth) {
        throw bad_body(fmt::format("The request body is nested deeper than {} levels.", max_json_depth));
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

std::string_view type_name(const Document& value) {
  if (value.is_boolean()) return "a boolean";
  if (value.is_number_float()) return "a number";
  if (value.is_number()) return "an integer";
  if (value.is_string()) return "a string";
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return "null";
}

ApiError wrong_type(const std::string& path, const Document& value, std::string_view expected) {
  return invalid_field(path, fmt::format("found {}; expected {}", type_name(value), expected));
}

int64_t to_integer(const std::string& path, const Document& value, int64_t low, int64_t high) {
  const auto out_of_range = [&] {
    return invalid_field(path, fmt::format("{} is out of range; expected {} to {}", value.dump(), low, high));
  };
  int64_t result = 0;
  if (value.is_number_float()) {
    const double real = value.get<double>();
    if (std::floor(real) != real) throw wrong_type(path, value, "an integer");
    // 2^63 does not fit, and an integer below -2^63 has become -2^63 by rounding.
    if (!(real > -9223372036854775808.0 && real < 9223372036854775808.0)) throw out_of_range();
    result = static_cast<int64_t>(real);
  } else if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    throw out_of_range();
  } else if (value.is_number()) {
    result = value.get<int64_t>();
  } else {
    throw wrong_type(path, value, "an integer");
  }
  if (result < low || result > high) throw out_of_range();
  return result;
}

std::vector<int64_t> to_integers(const std::string& path, const Document& list, int64_t low, int64_t high) {
  std::vector<int64_t> result;
  for (const Document& entry : list) {
    result.push_back(to_integer(fmt::format("{}[{}]", path, result.size()), entry, low, high));
  }
  return result;
}

}  // namespace

JsonBody::JsonBody(std::shared_ptr<const Node> node, std::string path)
    : node_(std::move(node)), path_(std::move(path)) {}

JsonBody JsonBody::parse(std::string_view text) {
  check_utf8(text);
  check_structure(text);
  // What a large body took goes back to the system, or an idle server would keep it for good.
  const bool large = text.size() > (size_t{1} << 20);
  const std::shared_ptr<Document> document(new Document, [large](const Document* json) {
    delete json;
    if (large) give_memory_back();
  });
  try {
    *document = Document::parse(text);
  } catch (const Document::parse_error& error) {
    throw bad_body(fmt::format("The request body is not valid JSON (byte {}).", error.byte));
  } catch (const Document::exception&) {
    throw bad_body("The request body is not valid JSON (a number is out of range).");
  }
  if (!document->is_object()) {
    throw bad_body(fmt::format("The request body is {}; expected a JSON object.", type_name(*document)));
  }
  return {std::make_shared<Node>(Node{document, document.get()}), {}};
}

std::string JsonBody::path_of(std::string_view name) const { return path_ + std::string(name); }

bool JsonBody::has(std::string_view name) const { return node_->find(name) != nullptr; }

std::vector<std::string> JsonBody::names() const {
  std::vector<std::string> names;
  for (const auto& [name, member] : node_->object->items()) names.push_back(name);
  return names;
}

std::optional<bool> JsonBody::boolean(std::string_view name) const {
  const Document* found = node_->find(name);
  if (!found) return std::nullopt;
  if (!found->is_boolean()) throw wrong_type(path_of(name), *found, "a boolean");
  return found->get<bool>();
}

std::optional<int64_t> JsonBody::integer(std::string_view name, int64_t low, int64_t high) const {
  const Document* found = node_->find(name);
  if (!found) return std::nullopt;
  return to_integer(path_of(name), *found, low, high);
}

std::optional<double> JsonBody::number(std::string_view name, double low, double high) const {
  const Document* found = node_->find(name);
  if (!found) return std::nullopt;
  if (!found->is_number()) throw wrong_type(path_of(name), *found, "a number");
  const double result = found->get<double>();
  if (!(result >= low && result <= high)) {
    throw invalid_field(path_of(name), fmt::format("{} is out of range; expected {} to {}", found->dump(), low, high));
  }
  return result;
}

std::optional<std::string> JsonBody::string(std::string_view name) const {
  const Document* found = node_->find(name);
  if (!found) return std::nullopt;
  if (!found->is_string()) throw wrong_type(path_of(name), *found, "a string");
  return found->get<std::string>();
}

std::optional<JsonBody> JsonBody::object(std::string_view name) const {
  const Document* found = node_->find(name);
  if (!found) return std::nullopt;
  if (!found->is_object()) throw wrong_type(path_of(name), *found, "an object");
  return JsonBody(std::make_shared<Node>(Node{node_->document, found}), path_of(name) + ".");
}

std::optional<std::vector<std::string>> JsonBody::strings(std::string_view name, bool or_single) const {
  const Document* found = node_->find(name);
  if (!found) return std::nullopt;
  const Document& json = *found;
  if (or_single && json.is_string()) return std::vector<std::string>{json.get<std::string>()};
  if (!json.is_array()) throw wrong_type(path_of(name), json, or_single ? "a string or a list of strings" : "a list");
  std::vector<std::string> result;
  for (const Document& entry : json) {
    if (!entry.is_string()) throw wrong_type(fmt::format("{}[{}]", path_of(name), result.size()), entry, "a string");
    result.push_back(entry.get<std::string>());
  }
  return result;
}

std::optional<std::vector<int64_t>> JsonBody::integers(std::string_view name, int64_t low, int64_t high) const {
  const Document* found = node_->find(name);
  if (!found) return std::nullopt;
  if (!found->is_array()) throw wrong_type(path_of(name), *found, "a list of integers");
  return to_integers(path_of(name), *found, low, high);
}

std::optional<std::vector<std::vector<int64_t>>> JsonBody::integer_lists(std::string_view name, int64_t low,
                                                                         int64_t high) const {
  const Document* found = node_->find(name);
  if (!found) return std::nullopt;
  if (!found->is_array()) throw wrong_type(path_of(name), *found, "a list of lists of integers");
  std::vector<std::vector<int64_t>> result;
  for (const Document& entry : *found) {
    const std::string path = fmt::format("{}[{}]", path_of(name), result.size());
    if (!entry.is_array()) throw wrong_type(path, entry, "a list of integers");
    result.push_back(to_integers(path, entry, low, high));
  }
  return result;
}

std::optional<std::vector<std::pair<int64_t, double>>> JsonBody::numbers_by_integer(std::string_view name, int64_t low,
                                                                                    int64_t high) const {
  const Document* found = node_->find(name);
  if (!found) return std::nullopt;
  if (!found->is_object()) throw wrong_type(path_of(name), *found, "an object");
  std::vector<std::pair<int64_t, double>> result;
  for (const auto& [key, value] : found->items()) {
    int64_t id = 0;
    const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_plain = code == std::errc() && end == key.data() + key.size() && std::to_string(id) == key;
    if (!is_plain || id < low || id > high) {
      // Found, not named: a key may be as long as the body.
      const std::string shown = Document(key.substr(0, 32)).dump(-1, ' ', true, Document::error_handler_t::replace);
      throw invalid_field(path_of(name), fmt::format("key {}; expected integers from {} to {}", shown, low, high));
    }
    if (!value.is_number()) throw wrong_type(fmt::format("{}.{}", path_of(name), key), value, "a number");
    result.emplace_back(id, value.get<double>());
  }
  return result;
}

std::optional<JsonBody::ListOf> JsonBody::list_of(std::string_view name) const {
  const Document* found = node_->find(name);
  if (!found || !found->is_array()) return std::nullopt;
  if (found->empty()) return ListOf::nothing;
  const Document& first = found->front();
  if (first.is_string()) return ListOf::strings;
  if (first.is_number()) return ListOf::integers;
  return first.is_array() ? ListOf::lists : ListOf::others;
}

bool JsonBody::is_string(std::string_view name) const {
  const Document* found = node_->find(name);
  return found && found->is_string();
}

bool JsonBody::is_set(std::string_view name) const {
  const Document* found = node_->find(name);
  if (!found) return false;
  const Document& json = *found;
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number()) return json.get<double>() != 0;
  if (json.is_string()) return !json.get_ref<const std::string&>().empty();
  return !json.empty();
}

}  // namespace tandem::api
