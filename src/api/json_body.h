// A JSON request body with typed, checked access, so that no dialect handles wrong types by itself. Rules of
// spec/frontend.md D.2: null is absent; integers may come as 1.0; booleans or strings for numbers are errors that name
// the field.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::api {

constexpr int max_json_depth = 128;
constexpr int64_t max_json_values =
    500'000;  // a parsed value takes tens of bytes: 32 MiB of "{}," would take gigabytes

class JsonBody {
 public:
  // Throws ApiError 400: not UTF-8, nested deeper than max_json_depth, more than max_json_values values, not JSON, not
  // an object.
  static JsonBody parse(std::string_view text);

  bool has(std::string_view name) const;  // present and not null
  std::vector<std::string> names() const;

  // Each is empty when absent and throws ApiError 400 naming the field for another type or a value outside [low, high].
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high) const;
  std::optional<double> number(std::string_view name, double low, double high) const;
  std::optional<std::string> string(std::string_view name) const;
  std::optional<JsonBody> object(std::string_view name) const;  // its fields are named "name.field" in errors
  // A list of strings; a single string counts as a list of one when `or_single`.
  std::optional<std::vector<std::string>> strings(std::string_view name, bool or_single) const;
  std::optional<std::vector<int64_t>> integers(std::string_view name, int64_t low, int64_t high) const;
  // A list of lists of integers.
  std::optional<std::vector<std::vector<int64_t>>> integer_lists(std::string_view name, int64_t low,
                                                                 int64_t high) const;
  // An object whose members are numbers named by integers in [low, high], written without plus sign and leading
  // zeros, so that no integer comes twice: {"17": -2.5}.
  std::optional<std::vector<std::pair<int64_t, double>>> numbers_by_integer(std::string_view name, int64_t low,
                                                                            int64_t high) const;

  // What a list holds, by its first entry; the readers above check the others.
  enum class ListOf { nothing, strings, integers, lists, others };
  std::optional<ListOf> list_of(std::string_view name) const;  // empty: absent or not a list
  bool is_string(std::string_view name) const;
  // Present and neither null, false, 0, "", [] nor {}.
  bool is_set(std::string_view name) const;

 private:
  struct Node;
  JsonBody(std::shared_ptr<const Node> node, std::string path);
  std::string path_of(std::string_view name) const;

  std::shared_ptr<const Node> node_;
  std::string path_;  // empty or "name."
};

}  // namespace tandem::api
